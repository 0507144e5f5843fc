//! Counts and times of decisions. `layer/telemetry.rs` is the only caller.
//!
//! | file | holds |
//! |---|---|
//! | `outcome.rs` | the outcome of a request at one policy |
//! | `observer.rs` | the counts that layers share |
//! | `policy.rs` | the counts of one policy |
//! | `endpoint.rs` | the names of endpoints, bounded |
//! | `counts.rs`, `top.rs` | for the admin router: counts, and the most denied clients |
//! | `timer.rs` | times of decisions |
//! | `waiting.rs` | a request in a queue |

#[cfg(feature = "admin")]
mod counts;
#[cfg(feature = "metrics")]
mod endpoint;
#[cfg(feature = "metrics")]
mod observer;
mod outcome;
#[cfg(feature = "metrics")]
mod policy;
#[cfg(feature = "metrics")]
mod timer;
#[cfg(feature = "admin")]
mod top;
#[cfg(feature = "metrics")]
mod waiting;

#[cfg(feature = "metrics")]
pub(crate) use self::endpoint::OTHER;
#[cfg(feature = "admin")]
pub use self::observer::Denials;
#[cfg(feature = "metrics")]
pub use self::observer::Observer;
pub(crate) use self::outcome::{Answer, source_name};
#[cfg(feature = "metrics")]
pub(crate) use self::policy::ObservedPolicy;
#[cfg(feature = "metrics")]
pub(crate) use self::timer::{Started, Timer};
#[cfg(feature = "admin")]
pub(crate) use self::top::{Denied, SUBJECTS, first};
#[cfg(feature = "metrics")]
pub(crate) use self::waiting::Waiting;
