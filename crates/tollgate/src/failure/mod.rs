//! When the store cannot decide.
//!
//! Each policy says what becomes of its requests then, see
//! [`OnStoreError`](crate::OnStoreError): `Open` lets them pass, `Closed` refuses them
//! with 503, and `Local` lets a second store in this process decide with a share of the
//! quota. The first two need nothing but the layer; these wrappers are stores around
//! stores, so that a layer still sees one:
//!
//! * [`Fallback`] decides the `Local` policies of a request by the second store. Without it, a
//!   layer with such a policy cannot be built.
//! * [`Breaker`] keeps an outage from costing every request its timeout: after some
//!   failures it answers at once, and looks now and then whether the store is back.
//!
//! Put the breaker inside: `Fallback::new(Breaker::new(redis), memory)`.

mod breaker;
mod fallback;
#[cfg(test)]
mod tests;

pub use self::breaker::{Breaker, BreakerFuture, BreakerState};
pub use self::fallback::{Fallback, FallbackFuture};
