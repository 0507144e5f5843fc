//! What happened to a request.

use std::sync::Arc;

use tollgate_core::{Decision, Micros, Outcome as Decided, Policy, Timestamp};
use tollgate_engine::Shown;

use super::Arrival;

/// What happened to a request.
#[derive(Clone, Debug)]
#[must_use]
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
    pub policy: Option<ShownPolicy>,
    /// When the request would have been allowed, if it was denied.
    pub retry_after: Option<Micros>,
    /// Whether the simulation sees each limit's decision. Otherwise a missing policy does not mean
    /// that no limit decided.
    pub sees_limits: bool,
}

/// The policy that an answer shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPolicy {
    /// The policy's name.
    pub name: Arc<str>,
    /// The limit, or a bucket's burst.
    pub limit: u64,
    /// The units that the policy left.
    pub remaining: u64,
}

impl Outcome {
    /// Creates the outcome for a request that met no limit.
    pub const fn unlimited(arrival: Arrival, status: u16) -> Self {
        let (wait, policy, retry_after) = (Micros::ZERO, None, None);
        Self { arrival, is_allowed: true, status, wait, policy, retry_after, sees_limits: true }
    }

    /// Adds the policy that restricts the client the most. `enforced` contains each enforced
    /// policy's decision.
    pub fn decided_by<'a>(
        mut self,
        enforced: impl Iterator<Item = (&'a Policy, &'a Decision)>,
    ) -> Self {
        let shown = enforced.filter(|(policy, decision)| {
            // A penalty appears only while it blocks.
            decision.outcome != Decided::Undecided && (!policy.is_penalty() || decision.denies())
        });
        let of = |(policy, decision): (&'a Policy, &'a Decision)| Shown {
            decision,
            is_concurrency: policy.is_concurrency(),
        };
        let tightest =
            shown.reduce(|one, other| if of(other).is_tighter(of(one)) { other } else { one });
        if let Some((policy, decision)) = tightest {
            let (limit, remaining) = (policy.capacity(), decision.remaining);
            self.policy = Some(ShownPolicy { name: policy.name().into(), limit, remaining });
            self.retry_after = of((policy, decision)).wait();
        }
        self
    }

    /// Returns when it passed.
    #[must_use]
    pub fn passed_at(&self) -> Timestamp {
        self.arrival.at + self.wait
    }

    /// Returns the units that the shown policy left.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.policy.as_ref().map(|policy| policy.remaining)
    }

    /// Returns the seconds in its Retry-After.
    #[must_use]
    pub fn retry_seconds(&self) -> Option<u64> {
        Some(self.retry_after?.get().div_ceil(1_000_000).max(1))
    }

    /// Returns the shown policy's name.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.policy.as_ref().map(|policy| &*policy.name)
    }

    /// Whether a client cannot tell two outcomes apart.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let numbers =
            |it: &Self| (it.is_allowed, it.status, it.wait, it.remaining(), it.retry_after);
        numbers(self) == numbers(other) && self.policy_name() == other.policy_name()
    }
}
