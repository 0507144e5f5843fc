//! The Tower layer, its builder and its service.
//!
//! [`RateLimitLayer`] has short forms ([`per_ip`](RateLimitLayer::per_ip),
//! [`global`](RateLimitLayer::global)) and a [builder](RateLimitLayer::builder) for any store,
//! policy, key and cost. Handlers use a [`Reservation`] to correct a request's cost.
//!
//! # The source
//!
//! A request passes through these functions, in this order:
//!
//! 1. `service.rs`: `RateLimit::call` reads the request head and calls `admit`.
//! 2. `admit.rs`: `classify` finds the limits that apply, with the key and cost under each. These
//!    are the request's rows. `without_key` may already reject a request that has no key.
//! 3. `telemetry.rs`: `start` begins the measurement. `state.rs`: `decide` makes the charges from
//!    the rows and calls the store.
//! 4. `judge.rs`: `judge` records the reply and writes its decisions into the rows.
//!    `state.rs`: `hand_over` gives the handler access to them. Then the service is called.
//! 5. `future.rs`: `ResponseFuture` polls the service, or returns the response to a rejected
//!    request.
//! 6. `respond.rs`: `finish` adds headers from the rows to the response. `reject` makes the
//!    response to a rejected request.
//!
//! Some requests wait, as `admit` finds out: `wait.rs` has a function for requests that wait for the
//! store's reply (`for_store`), in the wait queue (`for_units`), or for their turn in a leaky bucket
//! (`for_turn`). `ResponseFuture` holds these requests until they continue at step 4.
//!
//! | file | types used by other files in this folder |
//! |---|---|
//! | `admit.rs`, `wait.rs`, `respond.rs` | `Admission`; `Waiting`: the future of a request that waits; `OwnResponse` |
//! | `row.rs`, `rows.rs` | `Row`: a limit that applies to a request; `Rows`: all of them, with their decisions; `Rejection` |
//! | `state.rs`, `compiled.rs`, `options.rs` | `LayerState`: the layer's data; `CompiledLimit`, `Tiers`, `TierIndex`; `Options` |
//! | `extras.rs` | `Extras`: features that continue after the decision; `FollowUp`: their state for a request |
//! | `lanes.rs`, `wait_queue.rs`, `waiter.rs` | `Lanes`, `LaneKey`, `KeySet`, `Member`: a request in the lanes; `Arrival`, `Ticket`: a position in the wait queue; `Waiter`, `RetryTimes` |
//! | `cancel.rs`, `receipts.rs` | `CancelGuard`: refunds the charges when a request is dropped; `settle` |
//! | `in_flight.rs`, `settlement.rs` | `LeaseRenewer`: permits; `OpenCharges`: charges that are corrected later |
//! | `telemetry.rs`, `outage.rs` | `Telemetry`, `Observed`, `DecisionTimer`, `WaitTimer`; `Outage`, the log of failures |
//! | `checks.rs` | `LayerError`: why a layer cannot be built |

mod admit;
mod builder;
mod cancel;
mod checks;
mod compiled;
mod extras;
mod future;
#[cfg(feature = "metrics")]
mod handle;
mod in_flight;
mod judge;
mod lanes;
mod options;
mod outage;
mod receipts;
mod respond;
mod row;
mod rows;
mod service;
mod settlement;
mod state;
mod tally;
mod telemetry;
#[cfg(test)]
mod tests;
mod verdicts;
mod wait;
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
pub use self::verdicts::{LimitVerdict, Verdicts};
pub use self::wait_queue::WaitQueue;
