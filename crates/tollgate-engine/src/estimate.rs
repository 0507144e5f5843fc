//! Estimates of waits, for requests that are rejected before their turn.

use tollgate_core::{Algorithm, Cost, Decision, Micros, Outcome, Policy, Refill, Verdict};

use crate::queue::KeySet;

/// Returns the earliest time at which a charge can be allowed after `ahead` units of earlier
/// requests. Returns `None` for a concurrency limit, where only the end of other requests matters,
/// and for an undecided policy, because its numbers are placeholders.
pub(crate) fn earliest(
    policy: &Policy,
    cost: Cost,
    decision: &Decision,
    ahead: u64,
) -> Option<Micros> {
    let (wait, units) = match decision.outcome {
        _ if policy.is_concurrency() => return None,
        Outcome::Undecided => return None,
        Outcome::Deny { retry_after } => (retry_after, ahead),
        _ => {
            let units = ahead.saturating_add(cost.get());
            (Micros::ZERO, units.saturating_sub(decision.remaining))
        }
    };
    let (units, limit) = (u128::from(units), u128::from(policy.quota().limit()));
    let window = u128::from(policy.window().get());
    let more = match policy.algorithm() {
        Some(Algorithm::TokenBucket { refill: Refill::Greedy } | Algorithm::LeakyBucket { .. }) => {
            units * window / limit
        }
        _ if wait == Micros::ZERO => units.saturating_sub(1) / limit * window,
        _ => units / limit * window,
    };
    Some(Micros::new(wait.get().saturating_add(u64::try_from(more).unwrap_or(u64::MAX))))
}

pub(crate) fn denied_under(
    keys: KeySet,
    verdict: &Verdict,
    retry_after: impl Fn(usize, &Decision) -> Micros,
) -> Verdict {
    let decisions = verdict.decisions().iter().enumerate().map(|(number, decision)| {
        let outcome = match decision.outcome {
            Outcome::Allow { .. } | Outcome::WouldAllow | Outcome::Deny { .. }
                if keys.contains(number) =>
            {
                let retry_after = retry_after(number, decision).max(Micros::new(1));
                Outcome::Deny { retry_after }
            }
            Outcome::Allow { .. } => Outcome::WouldAllow,
            other => other,
        };
        Decision { outcome, ..*decision }
    });
    Verdict::new(false, verdict.decided_at(), decisions).with_source(verdict.source())
}

#[cfg(test)]
mod tests {
    use tollgate_core::Quota;

    use super::*;

    /// A Redis Cluster, or a remembered denial, decides only some policies of a denied request.
    #[test]
    fn undecided_policies_do_not_reject_waiters() {
        let policy = Policy::token_bucket("slow", Quota::per_minute(1)).unwrap();
        let earliest = |decision| earliest(&policy, Cost::ONE, &decision, 0);
        let undecided = Decision::undecided(1);
        assert_eq!(earliest(undecided), None);
        let without_units = Decision { outcome: Outcome::WouldAllow, ..undecided };
        assert_eq!(earliest(without_units), Some(Micros::new(60_000_000)));
    }
}
