//! Stores, their decisions, and the layer's behaviour while a store cannot decide.
//!
//! Each policy has an [`OnStoreError`](crate::policy::OnStoreError) for store failures: `Open`
//! allows all requests, `Closed` rejects them with 503, and `Local` lets a second store in this
//! process decide with a share of the quota.
//!
//! * [`StoreExt::or_local`](crate::StoreExt::or_local) adds the local store, for example
//!   `redis.or_local(MemoryStore::new())`. Policies over it default to `Local`.
//! * [`Policy::with_shed`](crate::Policy::with_shed) is the failure policy for requests that the
//!   store shed before sending them, because no reply could arrive before the deadline.
//! * The `RedisStore` has a `Breaker` for each server. It stops calls to a server that is down, so
//!   few requests wait for the timeout.

#[cfg(feature = "serde")]
pub use crate::settling::SentReceipt;
pub use tollgate_core::{
    AnyStore, BoxFuture, Charge, Charged, Decision, Fallback, FallbackFuture, Micros, NeverPending,
    Outcome, Override, OverrideChange, OverrideError, OverrideId, Overrides, PenaltyBlock, Receipt,
    ReceiptId, Reply, Settlement, Source, StoreError, Timestamp, Verdict,
};
#[cfg(feature = "memory")]
pub use tollgate_memory::{Clock, MemoryStats, MemoryStoreBuilder, SystemClock, ThreadLeases};
#[cfg(feature = "test-util")]
pub use tollgate_memory::{ManualClock, TokioClock};
#[cfg(feature = "redis")]
pub use tollgate_redis::{
    Breaker, BreakerState, ConnectError, ReadError, RedisFuture, RedisReport, RedisStats,
    RedisStoreBuilder, RedisValues, RedisWarning,
};
