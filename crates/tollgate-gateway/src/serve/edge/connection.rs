//! One client connection, from the first byte to the last.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use proxy_header::ParseConfig;
use proxy_header::io::ProxiedStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::observe::Inspect;
use tollgate_config::plan::Front;
use tollgate_proxy::{
    Connection, Fault, Guard, HeadLimits, LAST_CALL, MOST_FIELDS, MOST_HEAD_BYTES, Patience,
    Received, Serving, invalid_head,
};

use super::client_certificate::ClientCertificate;
use super::listener_settings::ListenerSettings;
use super::slots::Slot;
use crate::serve::answers::answer_to;
use crate::serve::body::Body;
use crate::serve::fronts::{decision_api, forward_auth, nginx, proxy, rate_limit_service};
use crate::serve::gateway::Gateway;
use crate::serve::operations::access_log::AccessLogEntry;
use crate::trace::Traced;

pub(crate) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    settings: ListenerSettings,
    slot: Slot,
) {
    let patience = gateway.app().patience();
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
                decrypted(&gateway, stream, client, &settings, patience).await
            }
            Some(proxies) => {
                if !proxies.contains(peer.ip()) {
                    let error = "the peer is not in `proxyProtocol`";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
                }
                let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
                let stream = ProxiedStream::create_from_tokio(stream, config);
                let stream = timeout(patience.head, stream).await??;
                // If the header has no client address, the proxy connects for itself, such as for a
                // health check.
                if let Some(addresses) = stream.proxy_header().proxied_address() {
                    client.peer = addresses.source;
                }
                if !client.has_room(&gateway, &settings) {
                    return Ok(());
                }
                Box::pin(decrypted(&gateway, stream, client, &settings, patience)).await
            }
        }
    };
    if let Err(error) = served.await {
        if let Some(reason) = invalid_head(&error) {
            gateway.persistent.summary.invalid_head(peer.ip(), reason);
        }
        tracing::debug!(%peer, %error, "a connection failed");
    }
}

/// Serves a client on this machine, which counts as loopback.
#[cfg(unix)]
pub(crate) async fn serve_local<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    stream: std::os::unix::net::UnixStream,
    slot: Slot,
    front: Front,
) {
    let patience = gateway.app().patience();
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let client = Accepted { peer, slot, is_tls: false, is_http1: false, certificate: None };
    let served = match tokio::net::UnixStream::from_std(stream) {
        Ok(stream) => http(&gateway, stream, client, front, patience).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a local connection failed");
    }
}

async fn decrypted<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    mut client: Accepted,
    settings: &ListenerSettings,
    patience: Patience,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = &settings.tls else {
        return http(gateway, stream, client, settings.front, patience).await;
    };
    // Boxed, because a task always has the size of its largest future, and TLS is much larger than
    // the rest.
    Box::pin(async move {
        let stream = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
        let stream = timeout(patience.head, stream).await??;
        let session = stream.get_ref().1;
        client.is_http1 = session.alpn_protocol() == Some(b"http/1.1");
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        client.certificate = certificate.and_then(ClientCertificate::of);
        http(gateway, stream, client, settings.front, patience).await
    })
    .await
}

async fn http<St: Inspect, S>(
    gateway: &Arc<Gateway<St>>,
    stream: S,
    Accepted { peer, slot, is_tls, is_http1, certificate }: Accepted,
    front: Front,
    patience: Patience,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = Connection::new(peer, is_tls).map_err(io::Error::other)?;
    if let Some(certificate) = certificate {
        connection.extensions.insert(certificate);
    }
    let slots = slot.slots().clone();
    let serving = Serving {
        patience,
        heads: heads(front),
        faults: |head| if nginx::is_check(head) { for_nginx } else { answer_to },
        draining: Arc::clone(&gateway.draining),
        is_crowded: move || slots.is_full(),
    };
    let served = Arc::new((Arc::clone(gateway), Arc::new(connection)));
    let answer = |request, received| answer(Arc::clone(&served), request, received, front);
    tollgate_proxy::serve(stream, is_http1, slot, &serving, answer).await
}

fn for_nginx(fault: Fault) -> Response<Bytes> {
    let mut response = answer_to(fault);
    nginx::pass_through_nginx(&mut response);
    response
}

const fn heads(front: Front) -> HeadLimits {
    match front {
        Front::Proxy | Front::DecisionApi => HeadLimits::CLIENT,
        Front::ForwardAuth => HeadLimits {
            http1_bytes: CHECK_BYTES,
            http1_headers: Some(MOST_CHECK_FIELDS),
            ..HeadLimits::CLIENT
        },
        Front::RateLimitService => HeadLimits {
            http2_bytes: SHARED_HEAD_BYTES,
            resets: SHARED_RESETS,
            ..HeadLimits::CLIENT
        },
    }
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
    received: Option<Received>,
    front: Front,
) -> (Response<Body>, InFlight) {
    let (gateway, connection) = &*served;
    let traced = Traced::begin(&mut request, connection.is_tls);
    let app = gateway.app_to_keep();
    let log = &gateway.persistent.access_log;
    // Pinned here, because the future is large, and `within` would move it twice.
    let answered = pin!(async {
        match front {
            Front::Proxy => {
                let entry = log.begin(&request, connection);
                (proxy::answer(&app, request, connection, received).await, entry)
            }
            // Boxed, so forwarded requests need no memory for these futures.
            Front::ForwardAuth => {
                Box::pin(forward_auth::answer(&app, &request, connection.peer, log)).await
            }
            Front::DecisionApi => {
                let (api, idle) = (app.decision_api.as_ref(), app.plan.timeouts.idle);
                (Box::pin(decision_api::answer(api, idle, request)).await, None)
            }
            Front::RateLimitService => {
                (Box::pin(rate_limit_service::answer(gateway, &app, request)).await, None)
            }
        }
    });
    let (response, entry) = traced.within(answered).await;
    if let Some(entry) = &entry {
        entry.answered(&response);
    }
    traced.answered(&response);
    (response, InFlight { _traced: traced, entry })
}

/// Finishes a request's span, and writes its log line.
struct InFlight {
    _traced: Traced,
    entry: Option<Box<AccessLogEntry>>,
}

impl Guard for InFlight {
    fn sent(&mut self, bytes: usize) {
        if let Some(entry) = &mut self.entry {
            entry.sent(bytes as u64);
        }
    }
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

/// Envoy shares a connection between all clients, and resets a stream when its client aborts.
/// Smaller heads bound the memory.
const SHARED_RESETS: usize = 4096;

const SHARED_HEAD_BYTES: u32 = 16 << 10;
