use std::collections::HashMap;
use std::mem;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_rustls::rustls::{self, ClientConfig};

use super::body::Sent;
use super::failures::Failures;
use super::group::Group;
use super::lease::{Lease, Unanswered};
use super::pool::Pool;
use super::settings::{Endpoint, Protocol, Servers, Timeouts};

type Tcp = HttpsConnector<HttpConnector>;

#[derive(Debug)]
pub(super) enum Connector {
    /// To the scheme and the authority of this URI.
    Tcp(Tcp, Uri),
    Unix(Arc<Path>),
}

/// Connections to all upstreams, and their health. Clones share both.
///
/// Both survive a reload, unless it changes a timeout. Otherwise each reload would open new
/// connections, leave the idle connections to their timeouts, and send requests to dead servers.
#[derive(Clone, Debug)]
pub struct Clients(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connectors: Mutex<Connectors>,
    timeouts: Timeouts,
    workers: usize,
    pools: Mutex<HashMap<(Endpoint, Protocol), Arc<Pool>>>,
    permits: Mutex<Permits>,
    groups: Mutex<Vec<(Servers, Weak<Group>)>>,
}

#[derive(Debug)]
struct Connectors {
    http1: Tcp,
    http2: Tcp,
    tls: bool,
}

#[derive(Debug)]
struct Permits {
    per_target: usize,
    /// For each server: its connections of all schemes and protocols.
    of: HashMap<String, Arc<Semaphore>>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the certificates that this system trusts cannot be read: {0}; install the package \
     `ca-certificates`, or name a file in the variable SSL_CERT_FILE"
)]
pub struct RootsError(std::io::Error);

impl Clients {
    pub fn new(
        timeouts: Timeouts,
        tls: bool,
        per_target: usize,
        workers: usize,
    ) -> Result<Self, RootsError> {
        let per_target = per_target.min(Semaphore::MAX_PERMITS);
        Ok(Self(Arc::new(Shared {
            connectors: Mutex::new(Connectors::new(tls)?),
            timeouts,
            workers,
            pools: Mutex::default(),
            permits: Mutex::new(Permits { per_target, of: HashMap::new() }),
            groups: Mutex::default(),
        })))
    }

    /// Returns these connections if their settings fit. `tls` allows https for new upstreams.
    pub fn fitting(&self, timeouts: Timeouts, tls: bool) -> Result<Option<Self>, RootsError> {
        if self.0.timeouts != timeouts {
            return Ok(None);
        }
        let mut connectors = self.0.connectors.lock();
        if tls && !connectors.tls {
            *connectors = Connectors::new(tls)?;
        }
        drop(connectors);
        Ok(Some(self.clone()))
    }

    /// Changes the maximum of connections per upstream. Connections over a lower maximum remain
    /// open until they close. Needs a runtime, which waits for them.
    pub fn bound(&self, per_target: usize) {
        let per_target = per_target.min(Semaphore::MAX_PERMITS);
        let mut permits = self.0.permits.lock();
        let before = mem::replace(&mut permits.per_target, per_target);
        for permits in permits.of.values() {
            if let Some(more) = per_target.checked_sub(before) {
                permits.add_permits(more);
                continue;
            }
            let mut fewer = before - per_target;
            fewer -= permits.forget_permits(fewer);
            if fewer > 0 {
                let permits = Arc::clone(permits);
                tokio::spawn(async move {
                    for _ in 0..fewer {
                        let Ok(permit) = permits.acquire().await else { return };
                        permit.forget();
                    }
                });
            }
        }
    }

    pub(super) fn pool(
        &self,
        endpoint: &Endpoint,
        protocol: Protocol,
    ) -> Result<Arc<Pool>, http::Error> {
        let shared = &*self.0;
        let mut pools = shared.pools.lock();
        // The other pools have lost their last route.
        pools.retain(|_, pool| Arc::strong_count(pool) > 1);
        let key = (endpoint.clone(), protocol);
        if let Some(pool) = pools.get(&key) {
            return Ok(Arc::clone(pool));
        }
        let Endpoint { scheme, authority, socket } = endpoint;
        let connector = match (socket, protocol) {
            (Some(socket), _) => Connector::Unix(Arc::clone(socket)),
            (None, protocol) => shared.connectors.lock().tcp(protocol, scheme, authority)?,
        };
        let mut permits = shared.permits.lock();
        let Permits { per_target, of } = &mut *permits;
        of.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits =
            of.entry(endpoint.to_string()).or_insert_with(|| Arc::new(Semaphore::new(*per_target)));
        let (permits, timeouts) = (Arc::clone(permits), shared.timeouts);
        let pool = Pool::new(protocol, connector, timeouts, permits, shared.workers);
        let pool = Arc::new(pool);
        pools.insert(key, Arc::clone(&pool));
        Ok(pool)
    }

    pub(super) fn timeouts(&self) -> &Timeouts {
        &self.0.timeouts
    }

    pub(super) fn group(
        &self,
        servers: &Servers,
        failures: &Failures,
    ) -> Result<Arc<Group>, http::Error> {
        let mut groups = self.0.groups.lock();
        groups.retain(|(_, group)| group.strong_count() > 0);
        let known = groups.iter().filter(|(known, _)| known == servers);
        if let Some(group) = known.filter_map(|(_, group)| group.upgrade()).next() {
            return Ok(group);
        }
        let group = Arc::new(Group::new(servers, self, failures)?);
        if let Some(active) = &servers.active {
            group.check(active);
        }
        groups.push((servers.clone(), Arc::downgrade(&group)));
        Ok(group)
    }

    /// Sends a request without a body over HTTP/1 to the server in its URI. The connection ends
    /// with the lease.
    pub(crate) async fn get(
        &self,
        mut request: Request<()>,
    ) -> Result<(Response<Incoming>, Lease), Box<dyn std::error::Error + Send + Sync>> {
        let parts = request.uri().clone().into_parts();
        let (scheme, authority) =
            parts.scheme.zip(parts.authority).ok_or("the URL has no scheme or no host")?;
        let endpoint = Endpoint { scheme, authority, socket: None };
        request.headers_mut().entry(http::header::HOST).or_insert(host(&endpoint)?);
        *request.uri_mut() = parts.path_and_query.map_or_else(Uri::default, Uri::from);
        let mut lease = self.pool(&endpoint, Protocol::Http1)?.lease_new().await?;
        let sent = lease.send(request.map(|()| Sent::default()), None).await;
        Ok((sent.map_err(|unanswered: Unanswered| unanswered.error)?, lease))
    }
}

impl Connectors {
    fn new(tls: bool) -> Result<Self, RootsError> {
        let config = tls_config(tls)?;
        let connector = || HttpsConnectorBuilder::new().with_tls_config(config.clone());
        let (http1, http2) = (tcp(None), tcp(Some(UNACKNOWLEDGED)));
        Ok(Self {
            http1: connector().https_or_http().enable_http1().wrap_connector(http1),
            http2: connector().https_or_http().enable_http2().wrap_connector(http2),
            tls,
        })
    }

    fn tcp(
        &self,
        protocol: Protocol,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Connector, http::Error> {
        let connector = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let server = Uri::builder().scheme(scheme.clone()).authority(authority.clone());
        Ok(Connector::Tcp(connector.clone(), server.path_and_query("/").build()?))
    }
}

/// The header `Host` for an upstream, without the default port of its scheme.
pub(super) fn host(
    Endpoint { scheme, authority, .. }: &Endpoint,
) -> Result<http::HeaderValue, http::header::InvalidHeaderValue> {
    let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    match authority.port_u16() {
        Some(port) if port != usual => format!("{}:{port}", authority.host()).try_into(),
        _ => authority.host().try_into(),
    }
}

/// The TLS settings of a client. Without `trusting`, the client trusts no certificate.
pub(crate) fn tls_config(trusting: bool) -> Result<ClientConfig, RootsError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| RootsError(std::io::Error::other(error)))?;
    let builder = if trusting {
        builder.with_native_roots().map_err(RootsError)?
    } else {
        builder.with_root_certificates(rustls::RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

fn tcp(unacknowledged: Option<Duration>) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    // A request is sent in few large pieces, so waiting for more of them only adds delay.
    connector.set_nodelay(true);
    // Detects dead servers on idle connections within 30 seconds.
    connector.set_keepalive(Some(Duration::from_secs(15)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    connector.set_tcp_user_timeout(unacknowledged);
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _ = unacknowledged;
    connector
}

/// The system closes an HTTP/2 connection if the server acknowledges no bytes for this time. An
/// HTTP/1 server may read a body slowly, but an HTTP/2 server always reads.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn system_detects_dead_servers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let Connectors { http1, http2, .. } = Connectors::new(false).unwrap();
        for (mut connector, unacknowledged) in [(http1, None), (http2, Some(UNACKNOWLEDGED))] {
            let stream = connector.call(uri.clone()).await.unwrap();
            let hyper_rustls::MaybeHttpsStream::Http(stream) = stream else { panic!("TLS") };
            let socket = socket2::SockRef::from(stream.inner());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
            assert_eq!(socket.tcp_user_timeout().unwrap(), unacknowledged);
        }
    }
}
