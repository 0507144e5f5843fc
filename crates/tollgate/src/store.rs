//! Stores, their decisions, and what a layer does while a store cannot decide.
//!
//! Each policy has an [`OnStoreError`](crate::policy::OnStoreError) for that time: `Open` lets requests
//! pass unlimited, `Closed` rejects them with 503, and `Local` lets a second store in this process
//! decide with a share of the quota.
//!
//! * [`StoreExt::or_local`](crate::StoreExt::or_local) adds the local store, as in
//!   `redis.or_local(MemoryStore::new())`. The default of policies over it is `Local`. A layer
//!   needs both or neither: the local store, and a policy that uses it.
//! * [`Policy::with_shed`](crate::Policy::with_shed) is the failure policy of requests that the
//!   store refused before it sent them, because no answer could come in time.
//! * A `Breaker` of the `RedisStore` stops calls to a server that is down, so that few requests wait
//!   for the timeout. The store has one for each server.

#[cfg(feature = "serde")]
pub use crate::settling::SentReceipt;
pub use tollgate_core::{
    AnyStore, Charge, Charged, Decision, Fallback, FallbackFuture, Micros, NeverPending, Outcome,
    Receipt, ReceiptId, Reply, Settlement, Source, StoreError, Timestamp, Verdict,
};
#[cfg(feature = "memory")]
pub use tollgate_memory::{Clock, MemoryStats, MemoryStoreBuilder, SystemClock};
#[cfg(feature = "test-util")]
pub use tollgate_memory::{ManualClock, TokioClock};
#[cfg(feature = "redis")]
pub use tollgate_redis::{
    Breaker, BreakerState, ConnectError, RedisFuture, RedisReport, RedisStats, RedisStoreBuilder,
    RedisWarning,
};
