//! The store: sends requests, and reports on its servers.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;
#[cfg(feature = "test-util")]
use tollgate_core::{Key, Policy};

use crate::calls::combiner::Combiner;
use crate::calls::future::Submitted;
use crate::calls::ticket::{Request, Ticket};
use crate::client::address::Address;
use crate::client::breaker::BreakerState;
use crate::client::node::Node;
use crate::client::overrides::SharedOverrides;
use crate::client::report::RedisReport;
use crate::client::roster::Roster;
use crate::lease::Leases;
use crate::script::names::Names;
use crate::stats::RedisStats;

/// A store in Redis: all processes that use the same server share their quotas. Clones share one
/// connection.
///
/// ```no_run
/// use tollgate_redis::RedisStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379")?;
/// store.connected().await;
/// assert!(store.is_connected());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) address: Address,
    pub(crate) names: Names,
    pub(crate) combiner: Arc<Combiner>,
    pub(crate) leases: Leases,
    /// Joined when a local fallback first needs it.
    pub(crate) roster: OnceLock<Roster>,
    /// Read since a layer or limiter first needed them.
    pub(crate) overrides: OnceLock<SharedOverrides>,
}

impl RedisStore {
    /// Waits until Redis answers. A service need not call it, because its failure policy decides
    /// until then.
    pub async fn connected(&self) {
        self.0.combiner.topology.connected().await;
    }

    /// Returns the Redis name under which a key's state is stored, for tests that read Redis.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn name_of(&self, policy: &Policy, key: &Key) -> Vec<u8> {
        self.0.names.state(policy, key).to_vec()
    }

    /// Returns whether requests are sent to Redis, or fail immediately because Redis does not
    /// answer within the timeout. In a Cluster this is the worst state among its masters; requests
    /// for keys on other masters are still sent.
    pub fn breaker(&self) -> BreakerState {
        let states = self.leaders().map(|leader| leader.breaker.state());
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Returns whether the store is connected. Otherwise requests fail after their timeout, or
    /// immediately while the [breaker](Self::breaker) is open.
    pub fn is_connected(&self) -> bool {
        let mut leaders = self.leaders().peekable();
        leaders.peek().is_some() && leaders.all(|leader| leader.connection.is_connected())
    }

    /// Returns the server's version and warnings as of the last connection, which are also logged.
    /// A Cluster has one report per master.
    pub fn reports(&self) -> Vec<RedisReport> {
        self.leaders().map(|leader| leader.report.lock().clone()).collect()
    }

    fn leaders(&self) -> impl Iterator<Item = Arc<Node>> {
        self.0.combiner.topology.leaders().into_iter()
    }

    /// Returns a number that is equal for all clones of a store and different from all other live
    /// stores. Callers that sum over several handles use it to count each store once.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the counters of this store.
    pub fn stats(&self) -> RedisStats {
        let combiner = &self.0.combiner;
        let replicas = self.0.roster.get().and_then(Roster::count);
        combiner.counters.read(combiner.topology.queued(), replicas)
    }

    /// Queues a request, or starts the call that carries it.
    pub(crate) fn submit(&self, request: Request) -> Submitted {
        self.submit_within(self.deadline(), self.0.combiner.deny_cache.epoch(), request)
    }

    /// Submits a request that fails after `deadline`. The deny cache remembers its answer if the
    /// cache's epoch is still `epoch`.
    pub(crate) fn submit_within(
        &self,
        deadline: Instant,
        epoch: u64,
        request: Request,
    ) -> Submitted {
        let combiner = &self.0.combiner;
        let slot = request.state().map(|state| combiner.topology.slot(state));
        let ticket = Ticket::new(request, slot.unwrap_or_default(), epoch, deadline);
        Submitted::new(combiner, ticket)
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.0.combiner.bounds.timeout
    }
}

/// Shows the address without credentials.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.0.address).finish_non_exhaustive()
    }
}
