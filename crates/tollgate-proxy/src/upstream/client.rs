use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::settings::TargetTls;
use crate::settings::{Connections, Endpoint, Protocol, Servers};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::addresses;
use super::checkout::{Checkout, Unanswered};
use super::connector::{Connector, Connectors, RootsError};
use super::failures::Failures;
use super::group::Group;
use super::pool::Pool;
use crate::body::sent::Sent;

/// Connections to all upstreams, and their health. Clones share both.
///
/// Both survive a reload. Otherwise each reload would open new connections, leave the idle ones to
/// their timeouts, and send requests to dead servers.
#[derive(Clone, Debug)]
pub struct Clients(Arc<ClientsInner>);

#[derive(Debug)]
struct ClientsInner {
    connectors: Mutex<Connectors>,
    workers: usize,
    /// The pools that routes use. The idle connections of a pool close with its last route.
    pools: Mutex<HashMap<PoolKey, Weak<Pool>>>,
    permits: Mutex<Permits>,
    groups: Mutex<Vec<KnownGroup>>,
}

type PoolKey = (Endpoint, Protocol, Connections, Option<TargetTls>);
type KnownGroup = (Servers, Option<TargetTls>, Weak<Group>);

#[derive(Debug)]
struct Permits {
    per_target: usize,
    /// The connections to each server, over all schemes and protocols.
    of: HashMap<String, Arc<Semaphore>>,
}

impl Clients {
    pub fn new(tls: bool, per_target: usize, workers: usize) -> Result<Self, RootsError> {
        let per_target = per_target.min(Semaphore::MAX_PERMITS);
        Ok(Self(Arc::new(ClientsInner {
            connectors: Mutex::new(Connectors::new(tls, addresses::system())?),
            workers,
            pools: Mutex::default(),
            permits: Mutex::new(Permits { per_target, of: HashMap::new() }),
            groups: Mutex::default(),
        })))
    }

    /// Opens all connections like this.
    #[cfg(test)]
    pub(crate) fn dialing(dial: super::connector::Dial) -> Self {
        let clients = Self::new(false, 8, 1).expect("no roots are read");
        clients.0.connectors.lock().dial = Some(dial);
        clients
    }

    /// Allows https for new upstreams.
    pub fn allow_tls(&self) -> Result<(), RootsError> {
        self.0.connectors.lock().allow_tls()
    }

    /// Changes the maximum number of connections per upstream. Connections above a lower maximum
    /// stay open until they close, and a task on the current runtime waits for them.
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
        settings: Connections,
        tls: Option<&TargetTls>,
    ) -> Result<Arc<Pool>, http::Error> {
        let inner = &*self.0;
        let mut pools = inner.pools.lock();
        pools.retain(|_, pool| pool.strong_count() > 0);
        let key = (endpoint.clone(), protocol, settings, tls.cloned());
        if let Some(pool) = pools.get(&key).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let Endpoint { scheme, authority, socket } = endpoint;
        let connector = match (socket, protocol) {
            (Some(socket), _) => Connector::Unix(Arc::clone(socket)),
            (None, protocol) => {
                inner.connectors.lock().tcp(protocol, scheme, authority, &settings, tls)?
            }
        };
        let mut permits = inner.permits.lock();
        let Permits { per_target, of } = &mut *permits;
        of.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits =
            of.entry(endpoint.to_string()).or_insert_with(|| Arc::new(Semaphore::new(*per_target)));
        let permits = Arc::clone(permits);
        let pool = Pool::new(protocol, connector, settings, permits, inner.workers);
        let pool = Arc::new(pool);
        pools.insert(key, Arc::downgrade(&pool));
        Ok(pool)
    }

    pub(super) fn group(
        &self,
        servers: &Servers,
        tls: Option<&TargetTls>,
        failures: &Failures,
    ) -> Result<Arc<Group>, http::Error> {
        let mut groups = self.0.groups.lock();
        groups.retain(|(.., group)| group.strong_count() > 0);
        let known = groups.iter().filter(|(known, own, _)| known == servers && own.as_ref() == tls);
        if let Some(group) = known.filter_map(|(.., group)| group.upgrade()).next() {
            return Ok(group);
        }
        let group = Arc::new(Group::new(
            servers,
            |endpoint, protocol| self.pool(endpoint, protocol, servers.connections, tls),
            failures,
        )?);
        if let Some(active) = &servers.active {
            group.check(active);
        }
        groups.push((servers.clone(), tls.cloned(), Arc::downgrade(&group)));
        Ok(group)
    }

    /// Sends a request without a body over HTTP/1 to the server in its URI, and waits up to `limit`
    /// for a connection and again for the response. The connection closes with the checkout.
    pub async fn get(
        &self,
        mut request: Request<()>,
        limit: Duration,
    ) -> Result<(Response<Incoming>, Checkout), Box<dyn std::error::Error + Send + Sync>> {
        let parts = request.uri().clone().into_parts();
        let (scheme, authority) =
            parts.scheme.zip(parts.authority).ok_or("the URL has no scheme or no host")?;
        let endpoint = Endpoint { scheme, authority, socket: None };
        request.headers_mut().entry(http::header::HOST).or_insert(endpoint.host_header()?);
        *request.uri_mut() = parts.path_and_query.map_or_else(Uri::default, Uri::from);
        let settings = Connections::of(limit);
        let mut checkout =
            self.pool(&endpoint, Protocol::Http1, settings, None)?.checkout_new().await?;
        let sent = checkout.send(request.map(|()| Sent::default()), None, limit).await;
        Ok((sent.map_err(|unanswered: Unanswered| unanswered.error)?, checkout))
    }
}
