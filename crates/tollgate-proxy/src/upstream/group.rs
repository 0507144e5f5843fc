//! An upstream's servers: selects a server for each request, and tracks which servers are down.
//!
//! All workers share this state, because a server that is down is down for every worker. It
//! consists of atomics, which requests to a single server never write.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::settings::{Address, Balance, Endpoint, HealthCheck, Passive, Protocol, Servers};
use http::header::{HOST, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use metrics::{Counter, counter};
use tokio::time::{Instant, sleep, timeout};

use super::checkout::{Busy, Checkout, SendError};
use super::failures::{Failures, Health};
use super::pool::Pool;
use crate::body::sent::Sent;
use crate::head::connection::Connection;
use crate::meter::Meter;

#[derive(Debug)]
pub(super) struct Group {
    members: Box<[Arc<Member>]>,
    pub(super) protocol: Protocol,
    balance: Balance,
    passive: Passive,
    given: AtomicUsize,
    began: Instant,
}

pub(super) struct Member {
    pub(super) address: Address,
    pub(super) pool: Arc<Pool>,
    /// For upgrade requests, which HTTP/2 cannot carry.
    pub(super) upgrades: Arc<Pool>,
    pub(super) host: HeaderValue,
    pub(super) health: Arc<Health>,
    failures: AtomicU32,
    /// When the next request tests whether the member answers again, in milliseconds; 0 while it
    /// receives requests normally.
    out_until: AtomicU64,
    is_down: AtomicBool,
    busy: Arc<AtomicUsize>,
    meter: Meter,
    failed: Counter,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("address", &self.address).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried(u64);

impl Group {
    /// Creates the members for `servers`.
    pub(super) fn new(
        servers: &Servers,
        pool: impl Fn(&Endpoint, Protocol) -> Result<Arc<Pool>, http::Error>,
        failures: &Failures,
    ) -> Result<Self, http::Error> {
        let member = |address: &Address| {
            let endpoint = &address.endpoint;
            let name = endpoint.to_string();
            let failed = counter!(FAILURES, "upstream" => name.clone());
            failed.increment(0);
            Ok(Arc::new(Member {
                address: address.clone(),
                pool: pool(endpoint, servers.protocol)?,
                upgrades: pool(endpoint, Protocol::Http1)?,
                host: endpoint.host_header()?,
                health: failures.of(&name),
                failures: AtomicU32::new(0),
                out_until: AtomicU64::new(0),
                is_down: AtomicBool::new(false),
                busy: Arc::default(),
                meter: Meter::upstream(&name),
                failed,
            }))
        };
        Ok(Self {
            members: servers.addresses.iter().map(member).collect::<Result<_, http::Error>>()?,
            protocol: servers.protocol,
            balance: servers.balance,
            passive: servers.passive,
            given: AtomicUsize::new(0),
            began: Instant::now(),
        })
    }

    /// Checks the servers until the group is dropped.
    pub(super) fn check(self: &Arc<Self>, active: &HealthCheck) {
        for index in 0..self.members.len() {
            tokio::spawn(check(Arc::downgrade(self), index, active.clone()));
        }
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = (String, bool)> {
        self.members.iter().map(|it| (it.address.endpoint.to_string(), it.is_up()))
    }

    pub(super) fn has_base_path(&self) -> bool {
        self.members.iter().any(|member| !member.address.base_path.is_empty())
    }

    /// The connection that this client has authenticated, and its member.
    pub(super) fn private(&self, client: &Arc<Connection>) -> Option<(&Arc<Member>, Checkout)> {
        let mut members = self.members.iter();
        members.find_map(|member| Some((member, member.pool.checkout_private(client)?)))
    }

    /// A member that was not tried yet, preferably one that receives requests. Occasionally, a
    /// request tests a member that currently receives none.
    pub(super) fn choose(&self, tried: &mut Tried) -> Option<&Arc<Member>> {
        let index = match self.members.len() {
            1 => (tried.0 == 0).then_some(0)?,
            count => self.choose_among(count, *tried)?,
        };
        tried.0 |= 1 << index;
        self.members.get(index)
    }

    fn choose_among(&self, count: usize, tried: Tried) -> Option<usize> {
        let given = self.given.fetch_add(1, Ordering::Relaxed);
        let is_untried = |index: &usize| tried.0 >> index & 1 == 0;
        let is_up = |index: &usize| self.members[*index].is_up();
        // Starts with another member each time, so equal members share the requests.
        let untried = (0..count).map(|n| given.wrapping_add(n) % count).filter(is_untried);
        let now = self.now();
        let due = untried.clone().find(|index| self.members[*index].is_due(now, self.passive));
        let chosen = due.or_else(|| match self.balance {
            Balance::RoundRobin => {
                // In a fixed order among the members that are up. Otherwise the neighbor of a
                // member that is down would receive the requests for both.
                let mut up = (0..count).filter(is_untried).filter(is_up);
                up.nth(given.checked_rem(up.clone().count())?)
            }
            Balance::LeastBusy => {
                let busy = |index: &usize| self.members[*index].busy.load(Ordering::Relaxed);
                untried.clone().filter(is_up).min_by_key(busy)
            }
        });
        chosen.or_else(|| untried.clone().next())
    }

    /// Milliseconds since the start, and never 0.
    fn now(&self) -> u64 {
        // A `u64` fits 500 million years.
        self.began.elapsed().as_millis() as u64 + 1
    }

    pub(super) fn busy(&self, member: &Member) -> Option<Busy> {
        let counts = self.balance == Balance::LeastBusy && self.members.len() > 1;
        counts.then(|| Busy::count(&member.busy))
    }

    pub(super) fn failed(&self, member: &Member) {
        member.failed.increment(1);
        let failures = member.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.passive.failures || self.members.len() == 1 {
            return;
        }
        let until = self.now() + millis(self.passive.retry_after);
        if member.out_until.swap(until, Ordering::Relaxed) == 0 {
            let upstream = &member.address.endpoint;
            tracing::warn!(%upstream, failures, "the upstream gets no requests for now");
        }
    }

    pub(super) fn answered(member: &Member, status: StatusCode, took: Duration) {
        member.meter.answered(status, took);
        member.health.answered();
        if member.failures.load(Ordering::Relaxed) != 0 {
            member.returns();
        }
    }
}

impl Member {
    fn is_up(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed) && self.out_until.load(Ordering::Relaxed) == 0
    }

    /// Whether a request should test the member now. Returns true for a single request per retry.
    fn is_due(&self, now: u64, passive: Passive) -> bool {
        let until = self.out_until.load(Ordering::Relaxed);
        if until == 0 || until > now || self.is_down.load(Ordering::Relaxed) {
            return false;
        }
        let next = now + millis(passive.retry_after);
        let swapped =
            self.out_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
        swapped.is_ok()
    }

    fn returns(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.out_until.swap(0, Ordering::Relaxed) != 0 {
            let upstream = &self.address.endpoint;
            tracing::info!(%upstream, "the upstream gets requests again");
        }
    }

    pub(super) fn target(&self, path: PathAndQuery, is_http1: bool) -> Result<Uri, http::Error> {
        if is_http1 {
            return Ok(path.into());
        }
        let endpoint = &self.address.endpoint;
        let target = Uri::builder()
            .scheme(endpoint.scheme.clone())
            .authority(endpoint.authority.clone())
            .path_and_query(path);
        target.build()
    }

    /// Requests the health check path. `None` if no connection was free.
    async fn ask(&self, path: PathAndQuery, protocol: Protocol, limit: Duration) -> Option<bool> {
        let is_http1 = protocol == Protocol::Http1;
        let mut request = Request::new(Sent::default());
        *request.uri_mut() = self.target(path, is_http1).ok()?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tollgate"));
        if is_http1 {
            request.headers_mut().insert(HOST, self.host.clone());
        }
        let mut checkout = match self.pool.checkout_new().await {
            Ok(checkout) => checkout,
            Err(SendError::Full) => return None,
            Err(_) => return Some(false),
        };
        let response = checkout.send(request, None, limit).await;
        let status = response.ok().map(|response| response.status());
        Some(status.is_some_and(|status| status.is_success() || status.is_redirection()))
    }
}

async fn check(group: Weak<Group>, index: usize, active: HealthCheck) {
    let (mut well, mut ill) = (0_u32, 0_u32);
    loop {
        let Some((member, protocol)) = group
            .upgrade()
            .and_then(|group| Some((Arc::clone(group.members.get(index)?), group.protocol)))
        else {
            return;
        };
        let asked =
            timeout(active.timeout, member.ask(active.path.clone(), protocol, active.timeout))
                .await;
        match asked.unwrap_or(Some(false)) {
            Some(true) => (well, ill) = (well.saturating_add(1), 0),
            Some(false) => (well, ill) = (0, ill.saturating_add(1)),
            None => {}
        }
        let upstream = &member.address.endpoint;
        if ill >= active.unhealthy && !member.is_down.swap(true, Ordering::Relaxed) {
            tracing::warn!(%upstream, checks = ill, "checks fail: the upstream gets no requests");
        } else if well >= active.healthy {
            if member.is_down.swap(false, Ordering::Relaxed) {
                tracing::info!(%upstream, checks = well, "checks succeed: the upstream gets requests");
            }
            if member.out_until.load(Ordering::Relaxed) != 0 {
                member.returns();
            }
        }
        drop(member);
        sleep(active.interval).await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 1)
}

const FAILURES: &str = "tollgate_gateway_upstream_failures_total";

#[cfg(test)]
mod tests;
