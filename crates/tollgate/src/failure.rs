//! When the store cannot decide.
//!
//! Each policy says what becomes of its requests then, see
//! [`OnStoreError`](crate::OnStoreError): `Open` lets them pass unlimited, `Closed` refuses them
//! with 503, and `Local` lets a second store in this process decide with a share of the quota.
//!
//! * [`StoreExt::or_local`](crate::StoreExt::or_local) gives a store a local one, as
//!   `redis.or_local(MemoryStore::new())`. Policies over it are `Local` unless they say otherwise.
//!   A layer that has such a store and no policy that uses it is not built, and neither is a layer
//!   with a `Local` policy over a store without one.
//! * Requests that the store refused before sending them, because no answer could come in time,
//!   can have a failure policy of their own: [`Policy::with_shed`](crate::Policy::with_shed).
//! * A [`Breaker`] keeps an outage from costing every request its timeout. `RedisStore` has one for
//!   each of its servers. It is pure, for stores of your own.

pub use tollgate_core::{Breaker, BreakerState, Fallback, FallbackFuture};
