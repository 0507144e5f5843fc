//! A state converted to another quota still counts the consumed units.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Outcome, Policy, Quota};

use crate::limiter::{Limiter, limiter, resumed};
use crate::oracle::Oracle;
use crate::trace::{Clock, Gap, Mode, Trace, check, steps, traces};

/// A key with a past under one policy, the policy under which it is read next, the time in between,
/// and a future.
#[derive(Clone, Debug)]
struct Change {
    past: Trace,
    to: Policy,
    gap: Gap,
    future: Trace,
}

fn changes() -> impl Strategy<Value = Change> {
    let mode = || prop::sample::select(Mode::ALL.as_slice());
    // Half of all changes stay within a mode, because most of the conversion logic applies there.
    let modes = prop_oneof![mode().prop_map(|mode| (mode, mode)), (mode(), mode())];
    modes.prop_flat_map(|(from, to)| {
        let gap = steps(1).prop_map(|steps| steps[0].gap);
        let change = (traces(from, 16), to.policies(), gap, steps(12));
        change.prop_map(|(past, to, gap, steps)| {
            let future = Trace { policy: to.clone(), start: past.start, steps };
            Change { past, to, gap, future }
        })
    })
}

/// Buckets and queues never contain more than their capacity after a conversion.
fn is_bucket(policy: &Policy) -> bool {
    policy.algorithm().expect("a limit").is_bucket()
}

fn is_log(policy: &Policy) -> bool {
    matches!(policy.algorithm().expect("a limit"), Algorithm::SlidingWindowLog { .. })
}

fn is_in_flight(policy: &Policy) -> bool {
    policy.is_concurrency()
}

/// Whether individual charges are carried over, each with its own timestamp.
fn keeps_charges(change: &Change) -> bool {
    both(change, is_log) || both(change, is_in_flight)
}

fn both(change: &Change, is: fn(&Policy) -> bool) -> bool {
    is(&change.past.policy) && is(&change.to)
}

/// Runs the past. Returns the resulting key, the oracle and the clock.
fn run_past(trace: &Trace, gap: Gap) -> (Box<dyn Limiter>, Oracle, Clock) {
    let mut key = limiter(&trace.policy);
    let mut oracle = Oracle::new(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            oracle.owe(now, units);
            key.owe(units, now);
        } else {
            let decision = key.request(now, units);
            if decision.allows() {
                oracle.take(now, units);
            }
            clock.note(&decision);
        }
    }
    clock.pass(gap);
    (key, oracle, clock)
}

#[test]
fn conversion_preserves_consumed_units() {
    check(file!(), &changes(), |change| {
        let (key, _, clock) = run_past(&change.past, change.gap);
        if key.is_fresh(clock.now) {
            return Ok(());
        }
        let at = key.counts_from();
        let consumed = key.consumed(at);
        let kept = key.converted(&change.to, clock.now).consumed(at);
        let capacity = change.to.capacity();
        if is_bucket(&change.to) {
            prop_assert_eq!(kept, consumed.min(capacity));
        } else if both(&change, is_in_flight) {
            // Each permit retains its own expiry.
        } else if !is_log(&change.to) && !is_in_flight(&change.to) {
            prop_assert_eq!(kept, consumed);
        } else if !keeps_charges(&change) || change.past.policy.window() <= change.to.window() {
            prop_assert!(kept >= consumed.min(2 * capacity), "a longer window counts as much");
        } else {
            prop_assert!(kept <= consumed, "a shorter window may count less");
        }
        Ok(())
    });
}

#[test]
fn log_conversion_preserves_timestamps() {
    let logs = changes().prop_filter("logs", keeps_charges);
    check(file!(), &logs, |change| {
        let (key, oracle, clock) = run_past(&change.past, change.gap);
        let converted = key.converted(&change.to, clock.now);
        // No permit can be recorded as if it had begun before the epoch.
        let is_early = both(&change, is_in_flight) && change.past.start < change.to.window().get();
        if key.is_fresh(clock.now) || is_early {
            return Ok(());
        }
        let tenth = change.to.window().get() / 10;
        for tenths in 0..=11 {
            let then = clock.now + tenth * tenths;
            let expected = match both(&change, is_in_flight) {
                true => oracle.permits(then),
                // Older units beyond twice the limit cannot change a decision.
                false => oracle.counts_in_log_of(&change.to, then).min(2 * change.to.capacity()),
            };
            prop_assert_eq!(converted.consumed(then), expected, "at {}", then);
        }
        Ok(())
    });
}

/// A store may have dropped a fresh key before the quota changes. The answers must not depend on
/// whether it did.
#[test]
fn fresh_key_stays_fresh_after_conversion() {
    check(file!(), &changes(), |change| {
        let (key, _, clock) = run_past(&change.past, change.gap);
        for now in [clock.now, clock.now + key.peek(clock.now).reset_after.get()] {
            let converted = key.converted(&change.to, now);
            if key.is_fresh(now) {
                prop_assert!(converted.is_fresh(now));
                prop_assert_eq!(converted.peek(now), limiter(&change.to).peek(now));
            }
        }
        Ok(())
    });
}

/// A decision keeps its guarantees after a conversion.
#[test]
fn decisions_are_exact_after_conversion() {
    check(file!(), &changes(), |change| {
        let (key, _, mut clock) = run_past(&change.past, change.gap);
        let mut key = key.converted(&change.to, clock.now);
        for step in &change.future.steps {
            let now = clock.pass(step.gap);
            let units = step.units.of(&change.to);
            let decision = key.request(now, units);
            clock.note(&decision);
            if let Outcome::Deny { retry_after } = decision.outcome {
                let retry_at = now + retry_after.get();
                prop_assert!(key.assess(retry_at - 1, units).denies());
                prop_assert!(key.assess(retry_at, units).allows());
            }
            prop_assert!(key.assess(now, decision.remaining).allows());
            prop_assert!(key.assess(now, decision.remaining + 1).denies());
            let reset_after = decision.reset_after.get();
            prop_assert_eq!(key.peek(now).reset_after, decision.reset_after);
            prop_assert!(key.is_fresh(now + reset_after));
            prop_assert!(reset_after == 0 || !key.is_fresh(now + reset_after - 1));
            prop_assert_eq!(key.peek(now + reset_after).remaining, change.to.capacity());
        }
        Ok(())
    });
}

/// Fractions of units are rounded against the client, so repeated changes can never create units.
#[test]
fn conversion_to_slower_quota_never_gains() {
    let bursts = Mode::ALL.into_iter().filter(|mode| mode.has_burst());
    let mode = prop::sample::select(bursts.collect::<Vec<_>>());
    let slower = mode.prop_flat_map(|mode| (traces(mode, 16), 1..=12_u64, 0..=12_u64));
    let slower = slower.prop_filter_map("does not build", |(past, twelfths, more)| {
        let from = past.policy.quota();
        let limit = (from.limit() * twelfths / 12).max(1);
        let quota = Quota::new(limit, from.window()).burst(from.capacity() + more);
        let to = Policy::new("p", quota, past.policy.kind()).ok()?;
        Some((past, to))
    });
    check(file!(), &slower, |(past, to)| {
        let (key, _, clock) = run_past(&past, Gap::Tenths(1, 1));
        let now = clock.now;
        let converted = key.converted(&to, now);
        // Any debt beyond the new capacity is forgiven.
        prop_assume!(key.consumed(key.counts_from()) <= to.capacity());
        for tenths in 0..=30 {
            let then = now + to.window().get() * tenths / 10;
            prop_assert!(converted.consumed(then) >= key.consumed(then), "at {then}");
        }
        Ok(())
    });
}

#[test]
fn resumed_key_counts_given_units() {
    check(file!(), &changes(), |change| {
        for step in &change.future.steps {
            let (to, now) = (&change.to, change.past.start);
            let units = step.units.of(to);
            let key = resumed(to, units, now);
            let is_log = is_log(to) || is_in_flight(to);
            let kept = match to.capacity() {
                capacity if is_bucket(to) => units.min(capacity),
                limit if is_log => units.min(2 * limit),
                _ => units,
            };
            prop_assert_eq!(key.consumed(now), kept);
            prop_assert_eq!(key.is_fresh(now), units == 0);
        }
        Ok(())
    });
}
