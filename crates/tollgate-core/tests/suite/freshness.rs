//! When a key cannot be told from one never used, and that it can until then.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::Micros;

use crate::limiter::{Limiter, limiter};
use crate::trace::{Clock, Step, Trace, every_rule};

every_rule!(at_its_reset_a_key_is_as_good_as_new_and_not_before);
every_rule!(dropping_a_fresh_key_changes_no_later_answer);

fn at_its_reset_a_key_is_as_good_as_new_and_not_before(trace: &Trace) -> TestCaseResult {
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
        // Any continuation from there on; the steps of the trace serve as one.
        let mut later = clock.clone();
        later.now = reset_at;
        lead_the_same_life(&*key, &*fresh, &mut later, &trace.steps[i..], trace)?;
    }
    Ok(())
}

/// Both keys get the same requests and have to give the same answers. The clock does
/// not step back here: of time before the reset only the used key knows.
fn lead_the_same_life(
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
fn dropping_a_fresh_key_changes_no_later_answer(trace: &Trace) -> TestCaseResult {
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
