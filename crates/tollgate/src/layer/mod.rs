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
//!    are the request's charges. `without_key` may already reject a request that has no key. If
//!    clients have their own quotas, `own_terms` finds them; a request may wait for a look-up.
//! 3. `drive/decide.rs`: `decide` asks the store, and concludes whether the request passes. The
//!    engine (`tollgate-engine`) knows what each reply means, and which requests wait.
//! 4. `state.rs`: `hand_over` gives the handler access to decisions, estimates and permits. Then
//!    the service is called.
//! 5. `future.rs`: `ResponseFuture` polls the service, or returns the response to a rejected
//!    request. It holds requests that wait.
//! 6. `respond.rs`: `finish` adds headers from the charges to the response. `reject` makes the
//!    response to a rejected request.
//!
//! | file | types used by other files in this folder |
//! |---|---|
//! | `admit.rs`, `respond.rs` | `Admission`; `OwnResponse` |
//! | `state.rs`, `compiled.rs`, `options.rs` | `LayerState`: the layer's data; `Http`, `CompiledLimit`, `Tiers`; `Options` |
//! | `look_ups.rs` | `LookUps`: the look-ups of quotas that a request waits for |
//! | `reservation.rs`, `settlement.rs`, `forgiveness.rs`, `tally.rs` | `Reservation`: a handler's access to open charges; corrections by a response and by its body |
//! | `status.rs` | `Status`: a service that shows a caller's limits |
//! | `checks.rs` | `LayerError`: why a layer cannot be built |

mod admit;
mod builder;
mod checks;
mod compiled;
mod forgiveness;
mod future;
#[cfg(feature = "metrics")]
mod handle;
mod look_ups;
mod options;
mod reservation;
mod respond;
mod service;
mod settlement;
mod state;
mod status;
mod tally;
#[cfg(test)]
mod tests;
mod verdicts;
mod wait_queue;

pub use self::builder::RateLimitLayerBuilder;
pub(crate) use self::checks::check_limits;
pub use self::checks::{CostAboveCapacity, LayerError};
pub use self::future::ResponseFuture;
#[cfg(feature = "metrics")]
pub use self::handle::LayerHandle;
#[cfg(feature = "metrics")]
pub(crate) use self::handle::Limited;
pub use self::reservation::Reservation;
pub use self::service::{RateLimit, RateLimitLayer};
pub use self::status::Status;
pub use self::tally::{TalliedBody, Tally};
pub use self::verdicts::{LimitVerdict, Verdicts};
pub use self::wait_queue::WaitQueue;
