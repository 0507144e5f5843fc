//! When a key becomes indistinguishable from an unused key, and not earlier.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::Micros;

use crate::limiter::{Limiter, limiter};
use crate::trace::{Clock, Step, Trace, every_rule};

every_rule!(key_is_fresh_exactly_at_reset);
every_rule!(dropping_fresh_key_changes_no_answer);

fn key_is_fresh_exactly_at_reset(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let fresh = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for (i, step) in trace.steps.iter().enumerate() {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            key.owe(units, now);
            continue;
        }
        let decision = key.request(now, units);
        clock.note(&decision);
        prop_assert_eq!(decision.reset_after == Micros::ZERO, key.is_fresh(now), "at {}", now);
        let reset_at = now + decision.reset_after.get();
        prop_assert!(key.is_fresh(reset_at));
        prop_assert_eq!(key.peek(reset_at), fresh.peek(reset_at));
        if reset_at > now {
            prop_assert!(!key.is_fresh(reset_at - 1));
            prop_assert_ne!(key.peek(reset_at - 1), fresh.peek(reset_at - 1));
        }
        // Any continuation would do; reuse the trace's own steps.
        let mut later = clock.clone();
        later.now = reset_at;
        answers_are_equal(&*key, &*fresh, &mut later, &trace.steps[i..], trace)?;
    }
    Ok(())
}

/// Sends both keys the same requests and expects the same answers. The clock does not step back
/// here, because only the used key knows the time before the reset.
fn answers_are_equal(
    used: &dyn Limiter,
    fresh: &dyn Limiter,
    clock: &mut Clock,
    steps: &[Step],
    trace: &Trace,
) -> TestCaseResult {
    let (mut used, mut fresh) = (used.copy(), fresh.copy());
    for step in steps {
        let now = clock.pass_forward(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            prop_assert_eq!(used.owe(units, now), fresh.owe(units, now));
        } else {
            let decision = used.request(now, units);
            prop_assert_eq!(decision, fresh.request(now, units));
            clock.note(&decision);
        }
    }
    Ok(())
}

/// Every store drops fresh keys to bound its memory. This test drops them as early as possible.
fn dropping_fresh_key_changes_no_answer(trace: &Trace) -> TestCaseResult {
    let mut kept = limiter(&trace.policy);
    let mut dropped = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass_forward(step.gap);
        if dropped.is_fresh(now) {
            dropped = limiter(&trace.policy);
        }
        let units = step.units.of(&trace.policy);
        if step.owed {
            prop_assert_eq!(kept.owe(units, now), dropped.owe(units, now));
        } else {
            let decision = kept.request(now, units);
            prop_assert_eq!(decision, dropped.request(now, units));
            clock.note(&decision);
        }
    }
    Ok(())
}
