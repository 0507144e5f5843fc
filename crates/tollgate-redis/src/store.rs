//! The store: turns charges, settlements and resets into requests.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{
    BoxFuture, Charge, Cost, Key, Micros, Policy, Receipt, Reply, Settlement, Store, StoreError,
};

use crate::address::Address;
use crate::breaker::BreakerState;
use crate::combiner::Combiner;
use crate::failure::STORE;
use crate::future::{RedisFuture, Submitted};
use crate::lease::Leases;
use crate::names::Names;
use crate::node::Node;
use crate::report::RedisReport;
use crate::roster::Roster;
use crate::stats::RedisStats;
use crate::ticket::{Answer, OwnedCharge, Request, Ticket};

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
        let states = self.leaders().map(|leader| leader.breaker().state());
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Returns whether the store is connected. Otherwise requests fail after their timeout, or
    /// immediately while the [breaker](Self::breaker) is open.
    pub fn is_connected(&self) -> bool {
        let mut leaders = self.leaders().peekable();
        leaders.peek().is_some() && leaders.all(|leader| leader.is_connected())
    }

    /// Returns the server's version and warnings as of the last connection, which are also logged.
    /// A Cluster has one report per master.
    pub fn reports(&self) -> Vec<RedisReport> {
        self.leaders().map(|leader| leader.report()).collect()
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

    /// Returns whether one call can decide all charges. Most requests have a single key, and all
    /// its policies share a slot.
    fn is_one_call(&self, charges: &[OwnedCharge]) -> bool {
        let topology = &self.0.combiner.topology;
        let mut slots = charges.iter().map(|charge| topology.slot(&charge.state));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Whether the same server certainly decides all charges. Unlike [`is_one_call`], this does not
    /// hash the keys.
    ///
    /// [`is_one_call`]: Self::is_one_call
    fn shares_server(&self, charges: &[Charge<'_>]) -> bool {
        self.0.combiner.topology.is_single()
            || charges.iter().all(|charge| charge.key == charges[0].key)
    }

    /// Settles a receipt, which is accepted for `lifetime`.
    pub(crate) fn settle_within(
        &self,
        lifetime: Micros,
        receipt: &Receipt,
        actual: Cost,
    ) -> BoxFuture<Settlement> {
        // Exclude the policy before sending: refunded units may allow other requests. Denials by
        // concurrency limits are not remembered anyway.
        if !receipt.policy.is_concurrency() {
            self.0.combiner.deny_cache.exclude(receipt.policy.name(), lifetime);
        }
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        let answer = self.submit(Request::Settle { state, settled, receipt, actual, lifetime });
        answer.boxed(|it| match it {
            Answer::Settlement(settlement) => Some(settlement),
            _ => None,
        })
    }
}

impl Store for RedisStore {
    type Future = RedisFuture;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        let is_leased = charges.iter().any(|charge| charge.policy.lease().is_some());
        // A dry run may have any cost, so only Redis can answer it.
        let is_dry = charges.iter().any(|charge| charge.dry);
        if is_leased
            && !is_dry
            && let Some(verdict) = self.0.leases.spend(charges)
        {
            self.0.combiner.counters.count_leased();
            return Reply::ready(Ok(verdict));
        }
        if !is_dry
            && self.shares_server(charges)
            && let Some(verdict) = self.0.combiner.deny_cache.find(charges)
        {
            self.0.combiner.counters.count_deny_cache_hit();
            return Reply::ready(Ok(verdict));
        }
        if is_leased && !is_dry {
            self.note_asked(charges);
        }
        let name = |charge: &Charge<'_>| self.0.names.state(charge.policy, charge.key);
        let charges = charges.iter().map(|charge| OwnedCharge::new(name(charge), charge));
        let charges: SmallVec<[OwnedCharge; 2]> = charges.collect();
        if !self.is_one_call(&charges) {
            return Reply::pending(self.decide_across_slots(charges));
        }
        Reply::pending(RedisFuture(self.submit(Request::Decide(charges))))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        Reply::pending(self.settle_within(receipt.lifetime(), receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        if !receipt.policy.is_concurrency() {
            let error = StoreError::no_lease(STORE, &receipt.policy);
            return Reply::ready(Err(error));
        }
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        let answer = self.submit(Request::Renew { state, settled, receipt });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Renewal(renewed) => Some(renewed),
            _ => None,
        }))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.0.combiner.deny_cache.forget();
        let state = self.0.names.state(policy, key);
        let answer = self.submit(Request::Reset { state });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Reset => Some(()),
            _ => None,
        }))
    }

    fn name(&self) -> &'static str {
        "redis"
    }

    /// The first call joins the roster in Redis, which counts the stores in this namespace that
    /// have done so. A store renews its entry every second, and is counted for up to ten seconds
    /// after its last heartbeat.
    fn replicas(&self) -> Option<NonZeroU32> {
        let Combiner { topology, ids, runtime, .. } = &*self.0.combiner;
        let join = || Roster::join(topology, &self.0.names.roster(), ids.process(), runtime);
        self.0.roster.get_or_init(join).count()
    }
}

/// Shows the address without credentials.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.0.address).finish_non_exhaustive()
    }
}
