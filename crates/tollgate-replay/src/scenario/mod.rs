//! Tests of limits: their requests, the expected outcomes, and the shortest history that still
//! fails.
//!
//! | file | holds |
//! |---|---|
//! | `requests.rs` | similar requests, and a test with its requests and expectations |
//! | `schedule.rs` | when requests arrive |
//! | `arrivals.rs` | the requests in a run |
//! | `outcome.rs` | what happened to a request |
//! | `expect.rs` | the expected outcomes |
//! | `shrink.rs` | the shortest history that shows a failure |
//! | `failed.rs` | a failure as a table |

mod arrivals;
mod expect;
mod failed;
mod outcome;
pub(crate) mod random;
mod requests;
mod schedule;
mod shrink;

pub use self::arrivals::Arrivals;
pub use self::expect::{Amount, Expectation, Expected, Failure, Scope};
pub use self::failed::{Failed, Row, Seconds};
pub use self::outcome::{Outcome, ShownPolicy};
pub use self::requests::{Caller, Requests, Test};
pub use self::schedule::{Arrival, Endless, Pace, Schedule, Sender};
pub use self::shrink::shortest;

use tollgate_core::Timestamp;

/// When simulations start: 2026-01-01 at midnight in UTC, where every usual window starts.
pub const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
