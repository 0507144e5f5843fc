//! Counts and times of decisions. `layer/telemetry.rs` is the only caller.
//!
//! | file | holds |
//! |---|---|
//! | `outcome.rs` | the outcome of a request at one policy |
//! | `observer.rs` | the counts that layers share |
//! | `policy.rs` | the counts of one policy |
//! | `endpoint.rs` | the names of endpoints, bounded |
//! | `top.rs` | the most denied clients, for the admin router |
//! | `timer.rs` | times of decisions |

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
pub(crate) use self::endpoint::OTHER;
#[cfg(feature = "admin")]
pub use self::observer::Denials;
#[cfg(feature = "metrics")]
pub use self::observer::Observer;
pub(crate) use self::outcome::{Answer, source_name};
#[cfg(feature = "metrics")]
pub(crate) use self::policy::{ObservedPolicy, Waiting};
#[cfg(feature = "metrics")]
pub(crate) use self::timer::{Started, Timer};
#[cfg(feature = "admin")]
pub(crate) use self::top::{Denied, SUBJECTS, first};
