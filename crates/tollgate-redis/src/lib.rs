//! The Redis store of Tollgate, for limits that many processes share, exact to the unit.
//!
//! [`RedisStore`] decides in a Lua script inside Redis. The script is a port of the functions in
//! `tollgate-core`; a test compares every field of the decisions of both. One call decides many
//! requests over many keys, one after the other. Each request is charged in whole or not at all.
//!
//! ```no_run
//! use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
//! use tollgate_redis::RedisStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1:6379")?;
//! let policy = Policy::sliding_window_log("global", Quota::per_minute(100))?;
//!
//! let verdict = store.charge(&policy, &Key::GLOBAL, Cost::new(5)).await?;
//! println!("{} units left", verdict.decisions()[0].remaining);
//! # Ok(())
//! # }
//! ```
//!
//! `lua/README.md` describes the arguments of the script and the layout of stored states.
//!
//! # Sentinels
//!
//! `redis-sentinel://host:26379?service=name&node=host:26379` asks the Sentinels for the master. The
//! store asks again when the connection breaks, or when the server is a replica. Meanwhile requests
//! fail within the timeout. Charges that the old master had not replicated are lost: at most that
//! number of units is admitted again.
//!
//! # Redis Cluster
//!
//! `redis-cluster://host:6379?node=host:6380` finds all nodes from the named nodes, by the names or
//! addresses that nodes announce, and follows changes. The user needs the right to `CLUSTER SLOTS`.
//!
//! All policies of a key share a slot, so one call decides them. *Different keys* of a request, for
//! example [`Key::GLOBAL`] and an address, are mostly in different slots, and no call can contain
//! both. Each slot then has its own call: first a key that denied within the last
//! second, then the narrowest quota, then [`Key::GLOBAL`], then queues, and shadow policies last. If a
//! slot denies or fails, the store refunds the charges in the slots before it. Therefore the contract
//! of [`Store`] holds in part:
//!
//! | | charges in one slot | charges in several |
//! |---|---|---|
//! | no quota ever grants more than it has | holds | holds |
//! | all or none is charged | at once | after the refund |
//! | a denial changes nothing | holds | except for a moment, when other requests may be denied |
//! | refunded units | | tried three times; if all tries are lost, the units are missing until they age out |
//! | verdict | one snapshot | one for each slot; `decided_at` is the last one's time, or that of the queue |
//! | report of policies that do not deny | all numbers | the units left, without a wait, if their slot decided before the denial; otherwise [`Outcome::Undecided`](tollgate_core::Outcome::Undecided) |
//! | the deny cache | used | not used, and off for policies with refunds |
//!
//! While a master is down, the requests for its slots fail until a replica leads. With
//! `cluster-require-full-coverage yes`, the default of Redis, the Cluster rejects all other requests
//! too; set `no`. The new master lacks the latest charges of the old master: at most that number of
//! units is admitted again.
//!
//! While a slot moves, requests follow their keys and are charged once. A request that needs several
//! keys of the slot (two policies of one subject, or the settlement of a receipt) waits until all
//! keys have moved. It fails uncharged if that takes longer than the timeout. Therefore move slots
//! with limits when there is little traffic.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod breaker;
mod builder;
mod bytes;
mod check;
mod clock;
mod combiner;
mod connection;
mod cross_slot;
mod deniers;
mod deny_cache;
mod encode;
mod failure;
mod future;
mod guard;
mod header;
mod ids;
mod interned;
mod lease;
mod names;
mod node;
mod pace;
mod random;
mod replay;
mod reply;
mod script;
mod server_clock;
#[doc(hidden)]
pub mod simulation;
mod stats;
mod ticket;
mod tls;
mod topology;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{
    Charge, Cost, Key, Micros, Policy, Receipt, Reply, Settlement, Store, StoreError, Verdict,
};

use self::address::Address;
pub use self::address::UrlError;
pub use self::breaker::{Breaker, BreakerState};
pub use self::builder::{ConnectError, RedisStoreBuilder};
pub use self::check::{RedisReport, RedisWarning};
use self::combiner::Combiner;
use self::failure::STORE;
pub use self::future::RedisFuture;
use self::lease::Leases;
use self::names::{Name, Names};
pub use self::stats::RedisStats;
use self::ticket::{CallAnswer, Line, Request, Ticket};
pub use self::tls::TlsError;
use self::topology::Member;

/// The store that processes share: every process with the same Redis has the same quotas. Clones
/// share one connection.
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
pub struct RedisStore(Arc<Inner>);

struct Inner {
    address: Address,
    names: Names,
    combiner: Arc<Combiner>,
    leases: Leases,
}

impl RedisStore {
    /// Makes a store with the default settings, which connects in the background. Call it within a
    /// tokio runtime, which carries the calls of the store: when that runtime has ended, all
    /// requests fail. Callers in another runtime, or outside a runtime, also get answers; each such
    /// call costs a task.
    ///
    /// It does not wait for Redis: see [`connected`](Self::connected).
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.connect()
    }

    /// Returns the settings of a store for this URL, to change.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        RedisStoreBuilder::new(url)
    }

    /// Waits until Redis answers. A service need not call it: its failure policy decides until
    /// then.
    pub async fn connected(&self) {
        self.0.combiner.topology.connected().await;
    }

    /// Returns the name under which Redis keeps the state of a key, for tests that read Redis.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn name_of(&self, policy: &Policy, key: &Key) -> Vec<u8> {
        self.0.names.state(policy, key).to_vec()
    }

    /// Returns whether requests are sent to Redis, or fail at once because Redis does not answer in
    /// time. In a Cluster this is the worst state of its masters; requests for keys of other
    /// masters are sent.
    pub fn breaker(&self) -> BreakerState {
        let states = self.leaders().map(|leader| leader.node.guard().state());
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Returns whether the store has a connection. Without one, requests fail after their timeout,
    /// or at once while the [breaker](Self::breaker) is open.
    pub fn is_connected(&self) -> bool {
        let mut leaders = self.leaders().peekable();
        leaders.peek().is_some() && leaders.all(|leader| leader.node.is_connected())
    }

    /// Returns the versions and warnings of the servers at the last connection, which the log has
    /// as well. One report for each master of a Cluster.
    pub fn reports(&self) -> Vec<RedisReport> {
        self.leaders().map(|leader| leader.node.report()).collect()
    }

    fn leaders(&self) -> impl Iterator<Item = Arc<Member>> {
        self.0.combiner.topology.leaders().into_iter()
    }

    /// Returns a number that is equal for all clones of a store and different for any other live
    /// store. Callers that add up several handles use it to count each store once.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the counters of this store.
    pub fn stats(&self) -> RedisStats {
        let combiner = &self.0.combiner;
        combiner.counters.read(combiner.topology.queued())
    }

    /// Sends a request about a key on its way.
    fn submit<T>(
        &self,
        about: &Name,
        request: Request,
        read: fn(CallAnswer) -> Option<T>,
    ) -> RedisFuture<T> {
        let combiner = &self.0.combiner;
        let slot = combiner.topology.slot(about);
        let ticket = Ticket::new(request, slot, combiner.deny_cache.epoch(), self.deadline());
        RedisFuture::submit(combiner, Arc::new(ticket), read)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.0.combiner.bounds.timeout
    }

    /// Whether one call can decide all of them. The policies of one subject are most of what is
    /// asked together, and share a slot.
    fn is_one_call(&self, lines: &[Line]) -> bool {
        let topology = &self.0.combiner.topology;
        let mut slots = lines.iter().map(|line| topology.slot(&line.state));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Settles a receipt. `lifetime` is how long it can be settled.
    fn settle_within(
        &self,
        lifetime: Micros,
        receipt: &Receipt,
        actual: Cost,
    ) -> RedisFuture<Settlement> {
        let read = |answer| match answer {
            CallAnswer::Settlement(settlement) => Some(settlement),
            _ => None,
        };
        // Before it is sent, because refunded units may let other requests pass. Denials by
        // concurrency limits are not remembered anyway.
        if !receipt.policy.is_concurrency() {
            self.0.combiner.deny_cache.exclude(receipt.policy.name(), lifetime);
        }
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let about = state.clone();
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        self.submit(&about, Request::Settle { state, settled, receipt, actual, lifetime }, read)
    }
}

impl Store for RedisStore {
    type Future<T: Send + 'static> = RedisFuture<T>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future<Verdict>> {
        let read = |answer| match answer {
            CallAnswer::Verdict(verdict) => Some(verdict),
            _ => None,
        };
        let is_leased = charges.iter().any(|charge| charge.policy.lease().is_some());
        // Only Redis has an answer for costs that were not requested before.
        let is_dry = charges.iter().any(|charge| charge.dry);
        if is_leased
            && !is_dry
            && let Some(verdict) = self.0.leases.spend(charges)
        {
            self.0.combiner.counters.count_leased();
            return Reply::ready(Ok(verdict));
        }
        let lines = charges.iter().map(|charge| Line {
            state: self.0.names.state(charge.policy, charge.key),
            policy: charge.policy.clone(),
            cost: charge.cost,
            enforce: charge.enforce,
            dry: charge.dry,
        });
        let lines: SmallVec<[Line; 2]> = lines.collect();
        let is_one_call = self.is_one_call(&lines);
        if is_one_call
            && !is_dry
            && let Some(verdict) = self.0.combiner.deny_cache.find(&lines)
        {
            self.0.combiner.counters.count_deny_cache_hit();
            return Reply::ready(Ok(verdict));
        }
        if is_leased && !is_dry {
            self.note_asked(charges);
        }
        if !is_one_call {
            return Reply::pending(cross_slot::decide(self, charges, lines, read));
        }
        let about = lines.first().map(|line| line.state.clone()).unwrap_or_default();
        Reply::pending(self.submit(&about, Request::Decide(lines), read))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Self::Future<Settlement>> {
        Reply::pending(self.settle_within(receipt.lifetime(), receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<Self::Future<Option<Receipt>>> {
        if !receipt.policy.is_concurrency() {
            let error = StoreError::no_lease(STORE, &receipt.policy);
            return Reply::ready(Err(error));
        }
        let read = |answer| match answer {
            CallAnswer::Renewal(receipt) => Some(receipt),
            _ => None,
        };
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let about = state.clone();
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        Reply::pending(self.submit(&about, Request::Renew { state, settled, receipt }, read))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Self::Future<()>> {
        let read = |answer| match answer {
            CallAnswer::Reset => Some(()),
            _ => None,
        };
        self.0.combiner.deny_cache.forget();
        let state = self.0.names.state(policy, key);
        let about = state.clone();
        Reply::pending(self.submit(&about, Request::Reset { state }, read))
    }

    fn name(&self) -> &'static str {
        "redis"
    }
}

/// Shows where Redis is, and no credentials.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.0.address).finish_non_exhaustive()
    }
}

/// The calling convention of the script, for the tests and benchmarks of this crate,
/// which talk to a bare server. No part of the public API.
#[doc(hidden)]
pub mod protocol {
    pub use crate::encode::{Ask, Batch, EncodeError, Line, Spent};
    pub use crate::reply::{BadReply, Fault, Frozen, Reply, Row};
    pub use crate::script::{CROSS_SLOT_TEXT, SHA1, TEXT};
}
