//! One connection of a client, from the first byte to the last.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use proxy_header::ParseConfig;
use proxy_header::io::ProxiedStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tollgate::status::Inspect;

use super::activity::{Activity, Answer, Patience, Watched, Working};
use super::app::Door;
use super::gateway::Gateway;
use super::linger::Lingering;
use super::slots::{Slot, Slots};
use super::streams::Streams;
use super::{forward_auth, rate_limits};
use crate::flow::{Paced, Share};
use crate::plan::Front;
use crate::proxy::{Body, Connection, Received};
use crate::trace::Traced;

/// Serves a connection that a listener has accepted, until it ends or the gateway drains.
pub(super) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    stream: TcpStream,
    peer: SocketAddr,
    door: Door,
    slot: Slot,
) {
    let (patience, slots) = (gateway.app().patience(), slot.slots().clone());
    let terms = &Terms { patience, slots, front: door.front };
    let served = async {
        // Answers are written in few large pieces: to wait for more only delays them.
        stream.set_nodelay(true)?;
        match &door.proxy_protocol {
            None => behind_proxies(&gateway, stream, peer, slot, &door, terms).await,
            Some(proxies) => {
                if !proxies.contains(peer.ip()) {
                    let error = "the peer is none of the proxies that speak the PROXY protocol";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
                }
                let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
                let stream = ProxiedStream::create_from_tokio(stream, config);
                let stream = timeout(terms.patience.head, stream).await??;
                // A proxy that checks our health calls for itself and names nobody.
                let client = stream.proxy_header().proxied_address();
                let client = client.map_or(peer, |addresses| addresses.source);
                behind_proxies(&gateway, stream, client, slot, &door, terms).await
            }
        }
    };
    if let Err(error) = served.await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn behind_proxies<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    peer: SocketAddr,
    mut slot: Slot,
    door: &Door,
    terms: &Terms,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Another proxy asks about all of its clients.
    let is_trusted =
        door.front != Front::Proxy || gateway.app().plan.trusted_proxies.contains(peer.ip());
    if !is_trusted && !slot.belongs_to(peer.ip(), door.most_per_address) {
        return Ok(());
    }
    let Some(tls) = &door.tls else {
        let connection = Connection { peer, is_tls: false };
        return http(gateway, stream, connection, slot, terms).await;
    };
    let stream = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
    let stream = timeout(terms.patience.head, stream).await??;
    http(gateway, stream, Connection { peer, is_tls: true }, slot, terms).await
}

async fn http<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    connection: Connection,
    slot: Slot,
    terms: &Terms,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Activity::new();
    let stream = Lingering::new(stream, Arc::clone(&activity));
    let stream = Watched::new(stream, Arc::clone(&activity), slot);
    let front = terms.front;
    let service = service_fn(|request: Request<Incoming>| {
        let working = Working::begin(&activity, request.version() == Version::HTTP_2);
        let gateway = Arc::clone(gateway);
        // In a box, which ends with the head of the response: a task keeps the size of the largest
        // thing it ever did.
        Box::pin(async move {
            Ok::<_, Infallible>(answer(&gateway, request, connection, working, front).await)
        })
    });
    let builder = builder(terms.patience);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let mut leaving = Leaving::new(&gateway.draining);
    let look = sleep_until(Instant::now() + terms.patience.head);
    let mut look = std::pin::pin!(look);
    loop {
        tokio::select! {
            // First, so that a request that has arrived is read before the time is looked at: a
            // busy machine may be late with both.
            biased;
            ended = &mut serving => return ended.map_err(io::Error::other),
            () = leaving.asked() => {
                // HTTP/2 can say which requests it will still answer. In HTTP/1 one may be under
                // way at this moment, or be sent as soon as an answer ends whose head did not
                // say that it is the last. So the next head says it, and only who asks for
                // nothing is left.
                if activity.is_h2() {
                    serving.as_mut().graceful_shutdown();
                }
                look.as_mut().reset(Instant::now() + LAST_CALL);
            }
            () = &mut look => {
                let now = Instant::now();
                let patience = terms.now(leaving.has_begun());
                // Of a connection that was new when it was asked it shows only now that it speaks
                // HTTP/2, in which no answer says that it is the last.
                if leaving.has_begun() && activity.is_h2() || leaving.is_over() {
                    serving.as_mut().graceful_shutdown();
                }
                match activity.deadline(patience) {
                    Some(deadline) if deadline <= now => {
                        // Whoever does not go when asked is put out.
                        if leaving.is_over() || activity.is_working() {
                            return Err(io::ErrorKind::TimedOut.into());
                        }
                        leaving.end();
                        serving.as_mut().graceful_shutdown();
                        look.as_mut().reset(now + LAST_CALL);
                    }
                    // A head may begin at any time, so nobody looks away for longer than one
                    // may take.
                    deadline => {
                        let next = deadline.unwrap_or(now + patience.head);
                        let latest = if leaving.has_begun() { LAST_CALL } else { patience.head };
                        look.as_mut().reset(next.min(now + latest));
                    }
                }
            }
        }
    }
}

async fn answer<St: Inspect>(
    gateway: &Gateway<St>,
    mut request: Request<Incoming>,
    connection: Connection,
    working: Working,
    front: Front,
) -> Response<Answer<Paced<Body>>> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let upload = Upload::of(&mut request);
    let traced = Traced::begin(gateway.tracing(), &mut request, connection.is_tls);
    let app = gateway.app_to_keep();
    let log = gateway.access_log();
    let answered = async {
        match front {
            Front::Proxy => {
                let entry = log.begin(&request, connection);
                (app.answer(request, connection).await, entry)
            }
            // In boxes, so that requests that are forwarded need no room for these.
            Front::ForwardAuth => {
                Box::pin(forward_auth::answer(&app, &request, connection.peer, log)).await
            }
            Front::RateLimitService => {
                (Box::pin(rate_limits::answer(gateway, &app, request)).await, None)
            }
        }
    };
    let (mut response, entry) = traced.within(answered).await;
    if let Some(entry) = &entry {
        entry.answered(&response);
    }
    traced.answered(&response);
    if is_http1 && !response.status().is_informational() {
        let unread = upload.filter(|upload| !upload.received.is_whole());
        if unread.is_some() {
            working.leaves_unread();
        }
        if gateway.draining.is_cancelled() || unread.is_some_and(|upload| !upload.is_small) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
    response.map(|body| Answer::new(Paced::response(body), working, traced, entry))
}

/// The body of a request over HTTP/1, if it has one.
struct Upload {
    received: Received,
    /// Whether hyper may keep the connection though the body is not read: hyper reads what has come
    /// by then, and closes where that is not all.
    is_small: bool,
}

impl Upload {
    fn of(request: &mut Request<Incoming>) -> Option<Self> {
        let body = request.body();
        if request.version() > Version::HTTP_11 || body.is_end_stream() {
            return None;
        }
        let is_small = body.size_hint().upper().is_some_and(|size| size <= SMALL_BODY);
        let received = Received::default();
        request.extensions_mut().insert(received.clone());
        Some(Self { received, is_small })
    }
}

fn builder(patience: Patience) -> Builder<Streams> {
    let mut builder = Builder::new(Streams { stall: patience.stall, share: Share::default() });
    builder
        .http1()
        .timer(TokioTimer::new())
        // It would count the time between requests too, for which there is more patience.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(UPLOAD_BYTES)
        .initial_connection_window_size(UPLOADS_BYTES)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(patience.keep_alive)
        .keep_alive_timeout(patience.head);
    builder
}

/// On which a connection is there.
struct Terms {
    patience: Patience,
    slots: Slots,
    front: Front,
}

impl Terms {
    /// Who does nothing makes room for those who wait, and is not waited for at the end.
    fn now(&self, is_leaving: bool) -> Patience {
        let Patience { keep_alive, .. } = self.patience;
        let is_short = is_leaving || self.slots.is_full();
        let keep_alive = if is_short { keep_alive.min(LAST_CALL) } else { keep_alive };
        Patience { keep_alive, ..self.patience }
    }
}

/// How far a connection is on its way out.
struct Leaving<'a> {
    draining: &'a CancellationToken,
    begun: bool,
    over: bool,
}

impl<'a> Leaving<'a> {
    fn new(draining: &'a CancellationToken) -> Self {
        Self { draining, begun: false, over: false }
    }

    /// Completes once, when the gateway begins to drain.
    async fn asked(&mut self) {
        if self.begun {
            std::future::pending::<()>().await;
        }
        self.draining.cancelled().await;
        self.begun = true;
    }

    const fn has_begun(&self) -> bool {
        self.begun
    }

    const fn is_over(&self) -> bool {
        self.over
    }

    const fn end(&mut self) {
        self.over = true;
    }
}

/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 64 * 1024;

/// How many requests one connection may have under way in HTTP/2.
const STREAMS: u32 = 100;

/// How much of one request's body may come before its target takes it.
const UPLOAD_BYTES: u32 = 128 << 10;

/// The same for all requests of a connection.
const UPLOADS_BYTES: u32 = 1 << 20;

/// How many streams a client may have opened and reset before we have seen them; one that
/// does more is at work on CVE-2023-44487.
const RESETS: usize = 32;

/// Up to this size a body that is not wanted mostly comes at once, and hyper discards it.
const SMALL_BODY: u64 = 8 << 10;

/// How long a client that was asked to leave may take to go.
const LAST_CALL: Duration = Duration::from_secs(1);
