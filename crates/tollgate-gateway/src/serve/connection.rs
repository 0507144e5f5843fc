//! One connection of a client, from the first byte to the last.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use proxy_header::ParseConfig;
use proxy_header::io::ProxiedStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tollgate::status::Inspect;

use super::activity::{Activity, Answer, Patience, Watched, Working};
use super::app::ListenerSettings;
use super::drain::Drain;
use super::gateway::Gateway;
use super::slots::{Slot, Slots};
use super::streams::Streams;
use super::{forward_auth, rate_limits};
use crate::flow::{Paced, Share};
use crate::plan::Front;
use crate::proxy::{Body, Connection, Received};
use crate::trace::Traced;

pub(super) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    settings: ListenerSettings,
    slot: Slot,
) {
    let (patience, slots) = (gateway.app().patience(), slot.slots().clone());
    let terms = &Terms { patience, slots, front: settings.front };
    let served = async {
        let stream = TcpStream::from_std(stream)?;
        // Answers are written in few large pieces, so waiting for more only adds delay.
        stream.set_nodelay(true)?;
        let mut client = Client { peer, slot, is_tls: settings.tls.is_some(), is_http1: false };
        match &settings.proxy_protocol {
            None => {
                if !client.has_room(&gateway, &settings) {
                    return Ok(());
                }
                client.is_http1 = !client.is_tls && begins_as_http1(&stream).await;
                decrypted(&gateway, stream, client, &settings, terms).await
            }
            Some(proxies) => {
                if !proxies.contains(peer.ip()) {
                    let error = "the peer is not in `proxyProtocol`";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
                }
                let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
                let stream = ProxiedStream::create_from_tokio(stream, config);
                let stream = timeout(terms.patience.head, stream).await??;
                // Without a client's address, the proxy connects for itself, for a health check.
                if let Some(addresses) = stream.proxy_header().proxied_address() {
                    client.peer = addresses.source;
                }
                if !client.has_room(&gateway, &settings) {
                    return Ok(());
                }
                Box::pin(decrypted(&gateway, stream, client, &settings, terms)).await
            }
        }
    };
    if let Err(error) = served.await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

async fn decrypted<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    mut client: Client,
    settings: &ListenerSettings,
    terms: &Terms,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = &settings.tls else {
        return http(gateway, stream, client, terms).await;
    };
    // Boxed, because a task always has the size of its largest future, and TLS is much larger than
    // the rest.
    Box::pin(async move {
        let stream = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
        let stream = timeout(terms.patience.head, stream).await??;
        client.is_http1 = stream.get_ref().1.alpn_protocol() == Some(b"http/1.1");
        http(gateway, stream, client, terms).await
    })
    .await
}

async fn http<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    Client { peer, slot, is_tls, is_http1 }: Client,
    terms: &Terms,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(peer, is_tls).map_err(io::Error::other)?;
    let served = Arc::new((Arc::clone(gateway), Arc::new(connection)));
    let activity = Activity::new();
    let stream = Watched::new(stream, Arc::clone(&activity), slot);
    let front = terms.front;
    let service = service_fn(|request: Request<Incoming>| {
        let working = Working::begin(&activity, request.version() == Version::HTTP_2);
        // Boxed, because a task always has the size of its largest future. The box is freed at the
        // head of the response.
        Box::pin(answer(Arc::clone(&served), request, working, front))
    });
    let stream = TokioIo::new(stream);
    if is_http1 {
        let mut builder = http1::Builder::new();
        // hyper's timeout would include the time between requests, which has a longer limit.
        builder.header_read_timeout(None).max_buf_size(HEAD_BYTES);
        let serving = builder.serve_connection(stream, service).with_upgrades();
        let stop = http1::UpgradeableConnection::graceful_shutdown;
        return drive(serving, stop, &activity, &gateway.draining, terms).await;
    }
    // Boxed, because it has room for both versions, and most connections know theirs.
    Box::pin(async {
        let builder = builder(terms.patience);
        let serving = builder.serve_connection_with_upgrades(stream, service);
        let stop = auto::UpgradeableConnection::graceful_shutdown;
        drive(serving, stop, &activity, &gateway.draining, terms).await
    })
    .await
}

/// Whether the first bytes that arrive are of HTTP/1. `false` also if there are none in time.
///
/// hyper can find out by itself, but then it reads the first bytes twice, and its buffer grows to
/// double the size for as long as the connection lasts.
async fn begins_as_http1(stream: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    match timeout(LAST_CALL, stream.peek(&mut first)).await {
        Ok(Ok(length)) => length > 0 && !PREFACE.starts_with(&first[..length]),
        _ => false,
    }
}

/// Serves a connection until its end. `stop` lets the requests under way end, and no more begin.
async fn drive<C, E>(
    serving: C,
    stop: fn(Pin<&mut C>),
    activity: &Activity,
    draining: &Drain,
    terms: &Terms,
) -> io::Result<()>
where
    C: Future<Output = Result<(), E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let mut serving = std::pin::pin!(serving);
    let mut leaving = Leaving::new(draining);
    let mut look = std::pin::pin!(sleep_until(Instant::now() + terms.patience.head));
    loop {
        let event = poll_fn(|cx| {
            // First, so that a request that has arrived is read before the timer fires. On a busy
            // machine both may be late.
            if let Poll::Ready(ended) = serving.as_mut().poll(cx) {
                return Poll::Ready(Event::Ended(ended.map_err(io::Error::other)));
            }
            if leaving.is_asked(cx) {
                return Poll::Ready(Event::Asked);
            }
            look.as_mut().poll(cx).map(|()| Event::Look)
        });
        match event.await {
            Event::Ended(ended) => return ended,
            Event::Asked => {
                // HTTP/2 can announce which requests it will still answer. In HTTP/1, a request may
                // already be on its way. So the next response has `Connection: close`, and only
                // connections without a further request stay open.
                if activity.is_h2() {
                    stop(serving.as_mut());
                }
                look.as_mut().reset(Instant::now() + LAST_CALL);
            }
            Event::Look => {
                let now = Instant::now();
                let patience = terms.now(leaving.begun);
                // The protocol of a connection that was new at the beginning of the drain may be
                // known only now. In HTTP/2, no answer has `Connection: close`.
                if leaving.begun && activity.is_h2() || leaving.over {
                    stop(serving.as_mut());
                }
                match activity.deadline(patience) {
                    Some(deadline) if deadline <= now => {
                        if leaving.over || activity.is_working() {
                            return Err(io::ErrorKind::TimedOut.into());
                        }
                        leaving.over = true;
                        stop(serving.as_mut());
                        look.as_mut().reset(now + LAST_CALL);
                    }
                    // A head may begin at any time, so the deadline is checked at least once in
                    // the time limit of a head.
                    deadline => {
                        let next = deadline.unwrap_or(now + patience.head);
                        let latest = if leaving.begun { LAST_CALL } else { patience.head };
                        look.as_mut().reset(next.min(now + latest));
                    }
                }
            }
        }
    }
}

async fn answer<St: Inspect>(
    served: Arc<(Arc<Gateway<St>>, Arc<Connection>)>,
    mut request: Request<Incoming>,
    working: Working,
    front: Front,
) -> Result<Response<Answer<Paced<Body>>>, Infallible> {
    let (gateway, connection) = &*served;
    let is_http1 = request.version() <= Version::HTTP_11;
    let upload = Upload::of(&request);
    let received = upload.as_ref().map(|upload| upload.received.clone());
    // A request with a body is never upgraded.
    let upgrade = upload.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let traced = Traced::begin(&gateway.persistent.tracing, &mut request, connection.is_tls);
    let app = gateway.app_to_keep();
    let log = &gateway.persistent.access_log;
    let answered = async {
        match front {
            Front::Proxy => {
                let entry = log.begin(&request, connection);
                (app.answer(request, connection, received).await, entry)
            }
            // Boxed, so that forwarded requests do not need memory for these futures.
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
        let is_large = unread.is_some_and(|upload| !upload.is_small);
        if gateway.draining.has_begun() || is_large {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(upgrade) = upgrade.filter(|_| is_large) {
            tokio::spawn(end(upgrade));
        }
    }
    Ok(response.map(|body| Answer::new(Paced::response(body), working, traced, entry)))
}

/// Shuts a connection down that hyper hands over after its last response. hyper does so if the
/// request had a header `Upgrade`, and otherwise shuts the connection down itself.
async fn end(upgrade: OnUpgrade) {
    if let Ok(stream) = upgrade.await {
        let _ = TokioIo::new(stream).shutdown().await;
    }
}

struct Upload {
    received: Received,
    /// Whether hyper may keep the connection although the body is not read. hyper discards the
    /// bytes that have arrived, and closes the connection if the body is not complete.
    is_small: bool,
}

impl Upload {
    fn of(request: &Request<Incoming>) -> Option<Self> {
        let body = request.body();
        if request.version() > Version::HTTP_11 || body.is_end_stream() {
            return None;
        }
        let is_small = body.size_hint().upper().is_some_and(|size| size <= SMALL_BODY);
        Some(Self { received: Received::default(), is_small })
    }
}

fn builder(patience: Patience) -> auto::Builder<Streams> {
    let streams = Streams { stall: patience.stall, share: Share::default() };
    let mut builder = auto::Builder::new(streams);
    builder.http1().header_read_timeout(None).max_buf_size(HEAD_BYTES);
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

struct Client {
    peer: SocketAddr,
    slot: Slot,
    is_tls: bool,
    is_http1: bool,
}

impl Client {
    /// Whether the address may have one more connection.
    fn has_room<St: Inspect>(
        &mut self,
        gateway: &Gateway<St>,
        settings: &ListenerSettings,
    ) -> bool {
        let address = self.peer.ip();
        // A trusted proxy in front connects for all of its clients, so the limit per address would
        // be wrong. On the other listeners every peer is such a proxy.
        settings.front != Front::Proxy
            || gateway.app().plan.trusted_proxies.contains(address)
            || self.slot.belongs_to(address, settings.most_per_address)
    }
}

struct Terms {
    patience: Patience,
    slots: Slots,
    front: Front,
}

impl Terms {
    /// The time limits at this moment. Idle connections have less time if other clients wait for a
    /// connection, or if the gateway drains.
    fn now(&self, is_leaving: bool) -> Patience {
        let Patience { keep_alive, .. } = self.patience;
        let is_short = is_leaving || self.slots.is_full();
        let keep_alive = if is_short { keep_alive.min(LAST_CALL) } else { keep_alive };
        Patience { keep_alive, ..self.patience }
    }
}

enum Event {
    Ended(io::Result<()>),
    Asked,
    Look,
}

struct Leaving<'a> {
    draining: &'a Drain,
    begins: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    is_woken: bool,
    begun: bool,
    over: bool,
}

impl<'a> Leaving<'a> {
    fn new(draining: &'a Drain) -> Self {
        let begins = Box::pin(draining.begins());
        Self { draining, begins, is_woken: false, begun: false, over: false }
    }

    /// Returns true once, when the gateway has begun to drain.
    fn is_asked(&mut self, cx: &mut Context<'_>) -> bool {
        if self.begun {
            return false;
        }
        if !self.is_woken {
            // Polled once: the waker of a task stays the same, and polling takes a lock.
            self.is_woken = true;
            let _ = self.begins.as_mut().poll(cx);
        }
        self.begun = self.draining.has_begun();
        self.begun
    }
}

/// What every connection of HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 64 * 1024;

/// The most requests under way on one HTTP/2 connection.
const STREAMS: u32 = 100;

/// The most bytes of one request's body that are buffered before the target reads them.
const UPLOAD_BYTES: u32 = 128 << 10;

/// The same for all requests of a connection together.
const UPLOADS_BYTES: u32 = 1 << 20;

/// The most streams that a client may open and reset before the gateway has accepted them. More
/// resets are an attack (CVE-2023-44487).
const RESETS: usize = 32;

/// A body of up to this size usually arrives at once, so hyper can discard it.
const SMALL_BODY: u64 = 8 << 10;
const LAST_CALL: Duration = Duration::from_secs(1);
