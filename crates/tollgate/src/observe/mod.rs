//! What the layer decides, for those who run it.
//!
//! | file | holds |
//! |---|---|
//! | `outcome.rs` | what became of a request at one policy, in one word |
//! | `observer.rs` | what layers have decided, shared by those that are told of it |
//! | `policy.rs` | what is kept of one policy |
//! | `endpoint.rs` | the names of endpoints, at most so many |
//! | `counts.rs`, `top.rs` | what the admin router tells: counts, and who is denied most |
//! | `timer.rs` | which decisions are timed |
//! | `waiting.rs` | a request in a queue |
//!
//! The layer comes here from one place, `layer/telemetry.rs`.

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
pub(crate) use self::outcome::Answer;
#[cfg(feature = "metrics")]
pub(crate) use self::policy::ObservedPolicy;
#[cfg(feature = "metrics")]
pub(crate) use self::timer::{Started, Timer};
#[cfg(feature = "admin")]
pub(crate) use self::top::{Denied, SUBJECTS, first};
#[cfg(feature = "metrics")]
pub(crate) use self::waiting::Waiting;
