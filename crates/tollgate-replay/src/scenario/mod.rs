//! The requests in a test: their schedule, their expected outcomes, and the shortest history that
//! still fails.
//!
//! | file | holds |
//! |---|---|
//! | `schedule.rs` | when requests arrive |
//! | `expect.rs` | their expected outcomes |
//! | `shrink.rs` | the shortest history that shows a failure |

mod expect;
pub(crate) mod random;
mod schedule;
mod shrink;

pub use self::expect::{Expectation, Expected, Failure, Scope};
pub use self::schedule::{Arrival, Pace, Schedule, Sender};
pub use self::shrink::shortest;

use tollgate_core::{Micros, Policy, Timestamp};

/// When simulations start: 2026-01-01 at midnight in UTC, where every usual window starts.
pub const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// What happened to a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The request.
    pub arrival: Arrival,
    /// Whether it passed, even if the target's answer is an error.
    pub is_allowed: bool,
    /// The answer's status.
    pub status: u16,
    /// How long it waited before it passed.
    pub wait: Micros,
    /// The policy that denied it, or else the policy that left the fewest units.
    pub policy: Option<Policy>,
    /// The units that this policy left.
    pub remaining: Option<u64>,
    /// When the request would have been allowed, if it was denied.
    pub retry_after: Option<Micros>,
}

impl Outcome {
    /// Creates the outcome for a request that met no limit.
    #[must_use]
    pub const fn unlimited(arrival: Arrival, status: u16) -> Self {
        let (wait, policy, remaining, retry_after) = (Micros::ZERO, None, None, None);
        Self { arrival, is_allowed: true, status, wait, policy, remaining, retry_after }
    }

    /// Returns when it passed.
    #[must_use]
    pub fn passed_at(&self) -> Timestamp {
        self.arrival.at + self.wait
    }

    /// Returns the seconds in its Retry-After.
    #[must_use]
    pub fn retry_seconds(&self) -> Option<u64> {
        Some(self.retry_after?.get().div_ceil(1_000_000).max(1))
    }

    fn policy_name(&self) -> Option<&str> {
        self.policy.as_ref().map(Policy::name)
    }

    /// Whether a client cannot tell two outcomes apart.
    fn is_like(&self, other: &Self) -> bool {
        let numbers = |it: &Self| (it.is_allowed, it.status, it.wait, it.remaining, it.retry_after);
        numbers(self) == numbers(other) && self.policy_name() == other.policy_name()
    }
}
