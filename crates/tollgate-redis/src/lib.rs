//! The Redis store of Tollgate, for limits that many processes share, exact to the unit.
//!
//! [`RedisStore`] decides in a Lua script inside Redis. The script is a port of the functions in
//! `tollgate-core`, and a test compares their decisions field by field. One call decides many
//! requests over many keys in sequence. Each request is charged completely or not at all.
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
//! `redis-sentinel://host:26379?service=name&node=host:26379` queries the Sentinels for the master,
//! and queries them again when the connection breaks or the server turns out to be a replica.
//! Meanwhile requests fail within the timeout. Charges that the old master had not replicated are
//! lost, so at most that number of units is admitted again.
//!
//! # Redis Cluster
//!
//! `redis-cluster://host:6379?node=host:6380` discovers all nodes from the named nodes, under the
//! names or addresses that they announce, and follows changes. The user needs permission to call
//! `CLUSTER SLOTS`.
//!
//! A key's policies share a slot, so one call decides them. *Different keys* in a request, for
//! example [`Key::GLOBAL`] and an address, are usually in different slots, and no call can contain
//! both. The store then makes one call per slot: first for keys that denied within the last second,
//! then the narrowest quota, then [`Key::GLOBAL`], then queues, and shadow policies last. If a slot
//! denies or fails, the store refunds the charges in the slots before it. The contract of [`Store`]
//! therefore holds only in part:
//!
//! | | charges in one slot | charges in several |
//! |---|---|---|
//! | no quota ever grants more than its limit | holds | holds |
//! | all or none is charged | immediately | after the refund |
//! | a denial changes nothing | holds | except briefly: other requests may be denied until the refund |
//! | refunded units | | tried three times; if all attempts fail, the units are missing until they age out |
//! | verdict | one snapshot | one per slot; `decided_at` is the last slot's time, or the queue's |
//! | report of policies that do not deny | all numbers | the remaining units, without a wait, if their slot decided before the denial; otherwise [`Outcome::Undecided`](tollgate_core::Outcome::Undecided) |
//! | deny cache | used | not used, and off for policies with refunds |
//!
//! While a master is down, requests for its slots fail until a replica is promoted. With
//! `cluster-require-full-coverage yes`, the default in Redis, the Cluster also rejects all other
//! requests, so set it to `no`. The new master lacks the old master's latest charges: at most that
//! number of units is admitted again.
//!
//! While a slot moves, requests follow their keys and are charged once. A request that needs
//! several keys in the slot (two policies of a key, or a settlement) waits until all its keys have
//! moved, and fails uncharged if that takes longer than the timeout. Move slots with limits when
//! there is little traffic.

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
mod header;
mod ids;
mod interned;
mod lease;
mod names;
mod node;
mod node_breaker;
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

/// The store that processes share: all processes that use the same Redis share their quotas. Clones
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
    /// Creates a store with the default settings, which connects in the background. Call it within
    /// a tokio runtime: the store's calls run there, and all requests fail after it has shut down.
    /// Callers in another runtime, or outside a runtime, also get answers, but each such call
    /// spawns a task.
    ///
    /// It does not wait for Redis: see [`connected`](Self::connected).
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.connect()
    }

    /// Returns a builder for a store at this URL.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        RedisStoreBuilder::new(url)
    }

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
        let states = self.leaders().map(|leader| leader.node.breaker().state());
        states.max().unwrap_or(BreakerState::Closed)
    }

    /// Returns whether the store is connected. Otherwise requests fail after their timeout, or
    /// immediately while the [breaker](Self::breaker) is open.
    pub fn is_connected(&self) -> bool {
        let mut leaders = self.leaders().peekable();
        leaders.peek().is_some() && leaders.all(|leader| leader.node.is_connected())
    }

    /// Returns the server's version and warnings as of the last connection, which are also logged.
    /// A Cluster has one report per master.
    pub fn reports(&self) -> Vec<RedisReport> {
        self.leaders().map(|leader| leader.node.report()).collect()
    }

    fn leaders(&self) -> impl Iterator<Item = Arc<Member>> {
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
        combiner.counters.read(combiner.topology.queued())
    }

    /// Queues a request about a key, or starts the call that carries it.
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

    /// Returns whether one call can decide all charges. Most requests have a single key, and all
    /// its policies share a slot.
    fn is_one_call(&self, lines: &[Line]) -> bool {
        let topology = &self.0.combiner.topology;
        let mut slots = lines.iter().map(|line| topology.slot(&line.state));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Settles a receipt, which is accepted for `lifetime`.
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
        // Exclude the policy before sending: refunded units may allow other requests. Denials by
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
        // A dry run may have any cost, so only Redis can answer it.
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

/// Shows the address without credentials.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.0.address).finish_non_exhaustive()
    }
}

/// The script's calling convention, for this crate's tests and benchmarks, which talk to a bare
/// server. Not part of the public API.
#[doc(hidden)]
pub mod protocol {
    pub use crate::encode::{Ask, Batch, EncodeError, Line, Spent};
    pub use crate::reply::{BadReply, Fault, Frozen, Reply, Row};
    pub use crate::script::{CROSS_SLOT_TEXT, SHA1, TEXT};
}
