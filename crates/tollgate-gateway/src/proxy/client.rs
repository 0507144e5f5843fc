use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};

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

/// Connections to any number of upstreams. Clones share them.
///
/// They outlive a reload. Otherwise each reload would open new connections and leave the old
/// ones to their timeouts.
#[derive(Clone, Debug)]
pub struct Clients(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    http1: Tcp,
    http2: Tcp,
    timeouts: Timeouts,
    tls: bool,
    per_target: usize,
    workers: usize,
    pools: Mutex<HashMap<(Endpoint, Protocol), Arc<Pool>>>,
    /// For each server: its connections of all schemes and protocols.
    permits: Mutex<HashMap<String, Arc<Semaphore>>>,
    groups: Mutex<Vec<(Servers, Weak<Group>)>>,
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
        let config = tls_config(tls)?;
        let connector = || HttpsConnectorBuilder::new().with_tls_config(config.clone());
        Ok(Self(Arc::new(Shared {
            http1: connector().https_or_http().enable_http1().wrap_connector(tcp()),
            http2: connector().https_or_http().enable_http2().wrap_connector(tcp()),
            timeouts,
            tls,
            per_target: per_target.min(Semaphore::MAX_PERMITS),
            workers,
            pools: Mutex::default(),
            permits: Mutex::default(),
            groups: Mutex::default(),
        })))
    }

    pub fn fit(&self, timeouts: Timeouts, tls: bool, per_target: usize) -> bool {
        self.0.timeouts == timeouts && (self.0.tls || !tls) && self.0.per_target == per_target
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
            (None, Protocol::Http1) => Shared::tcp(&shared.http1, scheme, authority)?,
            (None, Protocol::Http2) => Shared::tcp(&shared.http2, scheme, authority)?,
        };
        let mut permits = shared.permits.lock();
        permits.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = permits
            .entry(endpoint.to_string())
            .or_insert_with(|| Arc::new(Semaphore::new(shared.per_target)));
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

impl Shared {
    fn tcp(
        connector: &Tcp,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Connector, http::Error> {
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

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    // A request is sent in few large pieces, so waiting for more of them only adds delay.
    connector.set_nodelay(true);
    connector
}
