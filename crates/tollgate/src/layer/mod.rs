//! The Tower layer, its builder and its service.
//!
//! [`RateLimitLayer`] has short forms ([`per_ip`](RateLimitLayer::per_ip),
//! [`global`](RateLimitLayer::global)) and a [builder](RateLimitLayer::builder) for any store, policy,
//! key and cost. A handler corrects the cost of its request with a [`Reservation`].
//!
//! # The source
//!
//! A request goes through these functions, in this order:
//!
//! 1. `service.rs`: `RateLimit::call` reads the head of the request.
//! 2. `classify.rs`: `classify` finds the limits that apply, and its key and cost under each.
//! 3. `decide.rs`: `decide` makes one call of the store.
//! 4. `conclude.rs`: `conclude` turns the answer into an `Action`: forward, wait or respond.
//! 5. `service.rs` forwards the request; `future.rs` holds it while it waits.
//! 6. `conclude.rs`: `finish` adds the header fields to the response.
//!
//! | file | types that other files of the folder use |
//! |---|---|
//! | `limits.rs` | `CompiledLimit`, `Resolved`, `AppliedLimits`, `Tiers`, `TierIndex` |
//! | `lanes.rs`, `wait_queue.rs` | `Lanes`, `LaneKey`, `Member`; `Ticket`: a place in the wait queue |
//! | `waiter.rs` | `Waiter`, `Denied`: a request that waits |
//! | `cancel.rs` | `CancelGuard`: returns the charges of a request that is dropped |
//! | `in_flight.rs` | `LeaseRenewer`: permits of concurrency limits |
//! | `settlement.rs` | `OpenCharges`: charges that are corrected later |
//! | `telemetry.rs`, `outage.rs` | `Telemetry`, `Observed`, `DecisionTimer`, `WaitTimer`; `Outage`, the log of failures |
//! | `checks.rs` | `LayerError`: why a layer cannot be built |
//! | `options.rs`, `state.rs` | `Options`, `LayerState`: the layer as data |
//! | `action.rs` | `Action`, `Waiting`, `RequestContext`, `ResponseWork`, `Admission`, `Allowances`, `Allowance` |
//! | `future.rs` | `HeldRequest`: a request that does not run yet |

mod action;
mod builder;
mod cancel;
mod checks;
mod classify;
mod conclude;
mod decide;
mod future;
#[cfg(feature = "metrics")]
mod handle;
mod in_flight;
mod lanes;
mod limits;
mod options;
mod outage;
mod service;
mod settlement;
mod state;
mod tally;
mod telemetry;
#[cfg(test)]
mod tests;
mod verdicts;
mod wait_queue;
mod waiter;

pub use self::builder::RateLimitLayerBuilder;
pub use self::checks::{CostAboveCapacity, LayerError};
pub use self::future::ResponseFuture;
#[cfg(feature = "metrics")]
pub use self::handle::LayerHandle;
pub use self::service::{RateLimit, RateLimitLayer};
pub use self::settlement::Reservation;
pub use self::tally::{TalliedBody, Tally};
pub use self::verdicts::Verdicts;
pub use self::wait_queue::WaitQueue;
