//! One client connection, from the first byte to the last.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode, Version};
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
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::observe::Inspect;
use tollgate_config::plan::Front;

use super::activity::{Activity, LoggedBody, Patience, Watched, Working};
use super::client_certificate::ClientCertificate;
use super::invalid_head;
use super::lifetime::{LAST_CALL, Lifetime};
use super::listener_settings::ListenerSettings;
use super::slots::Slot;
use super::streams::Streams;
use crate::serve::body::Body;
use crate::serve::fronts::{forward_auth, rate_limit_service};
use crate::serve::gateway::Gateway;
use crate::trace::Traced;
use tollgate_proxy::{Connection, LongPause, MOST_FIELDS, MOST_HEAD_BYTES, Received};
use tollgate_proxy::{Paced, WaitingBytes};

pub(crate) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    settings: ListenerSettings,
    slot: Slot,
) {
    let (patience, slots) = (gateway.app().patience(), slot.slots().clone());
    let lifetime = &Lifetime { patience, slots, draining: &gateway.draining };
    let served = async {
        let stream = TcpStream::from_std(stream)?;
        // Answers are written in a few large pieces, so waiting for more only adds delay.
        stream.set_nodelay(true)?;
        let is_tls = settings.tls.is_some();
        let mut client = Accepted { peer, slot, is_tls, is_http1: false, certificate: None };
        match &settings.proxy_protocol {
            None => {
                if !client.has_room(&gateway, &settings) {
                    return Ok(());
                }
                client.is_http1 = !client.is_tls && begins_as_http1(&stream).await;
                decrypted(&gateway, stream, client, &settings, lifetime).await
            }
            Some(proxies) => {
                if !proxies.contains(peer.ip()) {
                    let error = "the peer is not in `proxyProtocol`";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
                }
                let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
                let stream = ProxiedStream::create_from_tokio(stream, config);
                let stream = timeout(lifetime.patience.head, stream).await??;
                // If the header has no client address, the proxy connects for itself, such as for a
                // health check.
                if let Some(addresses) = stream.proxy_header().proxied_address() {
                    client.peer = addresses.source;
                }
                if !client.has_room(&gateway, &settings) {
                    return Ok(());
                }
                Box::pin(decrypted(&gateway, stream, client, &settings, lifetime)).await
            }
        }
    };
    if let Err(error) = served.await {
        if let Some(reason) = invalid_head::reason(&error) {
            gateway.persistent.summary.invalid_head(peer.ip(), reason);
        }
        tracing::debug!(%peer, %error, "a connection failed");
    }
}

async fn decrypted<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    mut client: Accepted,
    settings: &ListenerSettings,
    lifetime: &Lifetime<'_>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = &settings.tls else {
        return http(gateway, stream, client, settings.front, lifetime).await;
    };
    // Boxed, because a task always has the size of its largest future, and TLS is much larger than
    // the rest.
    Box::pin(async move {
        let stream = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
        let stream = timeout(lifetime.patience.head, stream).await??;
        let session = stream.get_ref().1;
        client.is_http1 = session.alpn_protocol() == Some(b"http/1.1");
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        client.certificate = certificate.and_then(ClientCertificate::of);
        http(gateway, stream, client, settings.front, lifetime).await
    })
    .await
}

async fn http<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    Accepted { peer, slot, is_tls, is_http1, certificate }: Accepted,
    front: Front,
    lifetime: &Lifetime<'_>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = Connection::new(peer, is_tls).map_err(io::Error::other)?;
    if let Some(certificate) = certificate {
        connection.extensions.insert(certificate);
    }
    let served = Arc::new((Arc::clone(gateway), Arc::new(connection)));
    let activity = Activity::new();
    let stream = Watched::new(stream, Arc::clone(&activity), slot).of_front(front);
    let service = service_fn(|request: Request<Incoming>| {
        let working = Working::begin(&activity, request.version() == Version::HTTP_2);
        // Boxed, so the future's memory is freed at the response head, and not with the connection.
        Box::pin(answer(Arc::clone(&served), request, working, front))
    });
    let stream = TokioIo::new(stream);
    if is_http1 {
        let mut builder = http1::Builder::new();
        // hyper's timeout would include the time between requests, which has a longer limit.
        builder.header_read_timeout(None).max_buf_size(MOST_HEAD_BYTES).half_close(true);
        if front == Front::ForwardAuth {
            builder.max_buf_size(CHECK_BYTES).max_headers(MOST_CHECK_FIELDS);
        }
        let serving = builder.serve_connection(stream, service).with_upgrades();
        let stop = http1::UpgradeableConnection::graceful_shutdown;
        return lifetime.drive(serving, stop, &activity).await;
    }
    // Boxed, because it has room for both versions, and most connections negotiate theirs.
    Box::pin(async {
        let builder = builder(lifetime.patience, front);
        let serving = builder.serve_connection_with_upgrades(stream, service);
        let stop = auto::UpgradeableConnection::graceful_shutdown;
        lifetime.drive(serving, stop, &activity).await
    })
    .await
}

/// Whether the first bytes belong to HTTP/1. Also `false` if none arrive within `LAST_CALL`.
///
/// hyper can detect the version itself, but then it reads the first bytes twice, and its buffer
/// grows to double the size for the rest of the connection.
async fn begins_as_http1(stream: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    match timeout(LAST_CALL, stream.peek(&mut first)).await {
        Ok(Ok(length)) => length > 0 && !PREFACE.starts_with(&first[..length]),
        _ => false,
    }
}

async fn answer<St: Inspect>(
    served: Arc<(Arc<Gateway<St>>, Arc<Connection>)>,
    mut request: Request<Incoming>,
    working: Working,
    front: Front,
) -> Result<Response<LoggedBody<Paced<Body>>>, Infallible> {
    let (gateway, connection) = &*served;
    let version = request.version();
    let is_http1 = version <= Version::HTTP_11;
    let upload = Upload::of(&request);
    let received = upload.as_ref().map(|upload| upload.received.clone());
    // A request with a body is never upgraded.
    let upgrade = upload.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let traced = Traced::begin(&gateway.persistent.tracing, &mut request, connection.is_tls);
    let app = gateway.app_to_keep();
    let log = &gateway.persistent.access_log;
    // Pinned here, because the future is large, and `within` would move it twice.
    let answered = pin!(async {
        match front {
            Front::Proxy => {
                let entry = log.begin(&request, connection);
                (app.answer(request, connection, received).await, entry)
            }
            // Boxed, so forwarded requests need no memory for these futures.
            Front::ForwardAuth => {
                Box::pin(forward_auth::answer(&app, &request, connection.peer, log)).await
            }
            Front::RateLimitService => {
                (Box::pin(rate_limit_service::answer(gateway, &app, request)).await, None)
            }
        }
    });
    let (mut response, entry) = traced.within(answered).await;
    if let Some(entry) = &entry {
        entry.answered(&response);
    }
    traced.answered(&response);
    if let Some(LongPause(pause)) = response.extensions().get() {
        working.may_pause(*pause);
    }
    if is_http1 && !response.status().is_informational() {
        let unread = upload.filter(|upload| !upload.received.is_whole());
        if unread.is_some() {
            working.leaves_unread();
        }
        let is_large = unread.is_some_and(|upload| !upload.is_small);
        if gateway.draining.initialized() || is_large {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(upgrade) = upgrade.filter(|_| is_large) {
            tokio::spawn(end(upgrade));
        }
    }
    if version == Version::HTTP_10 && closes(&response) {
        // Otherwise hyper would announce that the connection stays open.
        *response.version_mut() = version;
    }
    let hides_end = is_http1 && has_length_of_another(&response);
    Ok(response.map(|body| {
        LoggedBody::new(Paced::response(body), working, traced, entry).hiding_end(hides_end)
    }))
}

/// Whether the connection closes after a response to HTTP/1.0. Without a length, only the close
/// shows the end of the body.
fn closes(response: &Response<Body>) -> bool {
    let (headers, body) = (response.headers(), response.body());
    let has_length = body.is_end_stream() || body.size_hint().exact().is_some();
    headers.contains_key(CONNECTION) || !has_length && !headers.contains_key(CONTENT_LENGTH)
}

/// Whether `Content-Length` describes the body of another response.
fn has_length_of_another(response: &Response<Body>) -> bool {
    let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &HeaderValue| {
        let is_digits = length.as_bytes().iter().all(u8::is_ascii_digit);
        is_digits && length.to_str().is_ok_and(|it| it.parse::<u64>().is_ok())
    };
    response.status() == StatusCode::NOT_MODIFIED
        && lengths.next().is_some_and(is_number)
        && lengths.next().is_none()
}

/// Shuts down a connection that hyper hands over after its last response. hyper does so if the
/// request had an `Upgrade` header, and otherwise shuts the connection down itself.
async fn end(upgrade: OnUpgrade) {
    if let Ok(stream) = upgrade.await {
        let _ = TokioIo::new(stream).shutdown().await;
    }
}

struct Upload {
    received: Received,
    /// Whether hyper may reuse the connection although the body was not read. hyper discards the
    /// bytes that have arrived, and closes the connection if the body is incomplete.
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

fn builder(patience: Patience, front: Front) -> auto::Builder<Streams> {
    let (resets, head_bytes) = match front {
        Front::RateLimitService => (SHARED_RESETS, SHARED_HEAD_BYTES),
        Front::Proxy | Front::ForwardAuth => (RESETS, MOST_HEAD_BYTES as u32),
    };
    let streams = Streams { stall: patience.stall, in_connection: WaitingBytes::default() };
    let mut builder = auto::Builder::new(streams);
    builder.http1().header_read_timeout(None).max_buf_size(MOST_HEAD_BYTES).half_close(true);
    if front == Front::ForwardAuth {
        builder.http1().max_buf_size(CHECK_BYTES).max_headers(MOST_CHECK_FIELDS);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(UPLOAD_BYTES)
        .initial_connection_window_size(UPLOADS_BYTES)
        .max_pending_accept_reset_streams(resets)
        .max_local_error_reset_streams(RESETS)
        .max_header_list_size(head_bytes)
        .keep_alive_interval(patience.keep_alive)
        .keep_alive_timeout(patience.head);
    builder
}

struct Accepted {
    peer: SocketAddr,
    slot: Slot,
    is_tls: bool,
    is_http1: bool,
    certificate: Option<ClientCertificate>,
}

impl Accepted {
    /// Whether the address may have another connection.
    fn has_room<St: Inspect>(
        &mut self,
        gateway: &Gateway<St>,
        settings: &ListenerSettings,
    ) -> bool {
        let address = self.peer.ip();
        // A trusted proxy connects for all its clients, so a limit per address would be wrong. On
        // the other listeners, every peer is such a proxy.
        settings.front != Front::Proxy
            || gateway.app().plan.trusted_proxies.contains(address)
            || self.slot.belongs_to(address, settings.most_per_address)
    }
}

/// The first bytes of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum size of a check, which contains a request's head and its proxy's headers.
const CHECK_BYTES: usize = 2 * MOST_HEAD_BYTES;

/// More than a request may have, so the gateway decides about a head with too many headers.
const MOST_CHECK_FIELDS: usize = 2 * MOST_FIELDS;

/// The maximum number of requests in flight on one HTTP/2 connection.
const STREAMS: u32 = 100;

/// How many bytes of a request body may be buffered before the target reads them.
const UPLOAD_BYTES: u32 = 128 << 10;

/// The same for all requests on a connection together.
const UPLOADS_BYTES: u32 = 1 << 20;

/// How many streams a client may open and reset before the gateway has accepted them. More resets
/// are an attack (CVE-2023-44487).
const RESETS: usize = 32;

/// The same for Envoy, which shares a connection between all clients and resets a stream when its
/// client aborts. Smaller heads bound the memory.
const SHARED_RESETS: usize = 4096;

const SHARED_HEAD_BYTES: u32 = 16 << 10;

/// A body up to this size usually arrives in one piece, so hyper can discard it.
const SMALL_BODY: u64 = 8 << 10;
