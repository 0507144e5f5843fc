//! Settling charges to a bucket that refills in intervals.
//!
//! Such a bucket's timer starts with the first charge to a full bucket, so the time of a charge
//! shifts every later refill. Two buckets that once differed may remain out of step, each ahead in
//! turn, regardless of refunds. A refund does not restart the timer, because it must not lengthen
//! another client's wait. The test therefore checks the law as far as it can hold: within the
//! charge's interval, the corrected bucket admits no more than the bucket that was spared the
//! charge, and the interval ends when it would have ended without the refund.

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::limiter::{Limiter, limiter, receipt};
use crate::settle::{Plan, plans};
use crate::trace::{Clock, Mode, check};

/// The end of the current interval, if there is any.
fn interval_end(key: &dyn Limiter, now: u64, window: u64) -> Option<u64> {
    // Interval boundaries are whole windows apart, and the reset is on a boundary.
    let reset_after = key.peek(now).reset_after.get();
    (reset_after > 0).then(|| now + (reset_after - 1) % window + 1)
}

fn check_until_interval_end(plan: &Plan) -> TestCaseResult {
    let trace = &plan.trace;
    let window = trace.policy.window().get();
    let mut corrected = limiter(&trace.policy);
    let mut spared = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    let mut pending = None;
    let mut end = u64::MAX;
    let mut settled = false;
    for (i, step) in trace.steps.iter().enumerate() {
        let now = clock.pass_forward(step.gap);
        if now >= end {
            break;
        }
        let units = step.units.of(&trace.policy);
        let decision = corrected.request(now, units);
        clock.note(&decision);
        if let Some(charged) = receipt(&decision, now, units) {
            let mut kept = units;
            if i >= plan.pick && end == u64::MAX {
                pending = Some((i, charged));
                end = interval_end(&*corrected, now, window).unwrap_or(u64::MAX);
                kept -= plan.returns(units);
            }
            prop_assert!(spared.assess(now, kept).allows());
            if kept > 0 {
                spared.charge(now, kept);
            }
        }
        if let Some((since, charged)) = pending
            && i - since == plan.later
        {
            let units = plan.returns(charged.cost.get());
            // No units were refilled within the interval, so all units are refunded.
            prop_assert_eq!(corrected.give_back(&charged, units, now), units);
            settled = true;
            let ends = interval_end(&*corrected, now, window);
            prop_assert!(ends.is_none_or(|ends| ends == end), "{ends:?} {end}");
        }
        if settled {
            check_never_fuller(&*corrected, &*spared, now..end, window)?;
        }
    }
    Ok(())
}

/// Checks every tenth of the interval's rest.
fn check_never_fuller(
    corrected: &dyn Limiter,
    spared: &dyn Limiter,
    rest: Range<u64>,
    window: u64,
) -> TestCaseResult {
    for tenths in 0..=10 {
        let then = (rest.start + window * tenths / 10).min(rest.end - 1);
        prop_assert!(corrected.consumed(then) >= spared.consumed(then), "at {then}");
    }
    Ok(())
}

#[test]
fn refunds_within_the_interval() {
    check(file!(), &plans(Mode::TokenInterval), |plan| check_until_interval_end(&plan));
}

#[test]
fn refilled_units_are_not_refunded() {
    check(file!(), &plans(Mode::TokenInterval), |plan| {
        let trace = &plan.trace;
        let window = trace.policy.window().get();
        let mut key = limiter(&trace.policy);
        let mut clock = Clock::new(trace);
        for step in &trace.steps {
            let now = clock.pass_forward(step.gap);
            let units = step.units.of(&trace.policy);
            let decision = key.request(now, units);
            clock.note(&decision);
            if let (Some(charged), Some(end)) =
                (receipt(&decision, now, units), interval_end(&*key, now, window))
            {
                let mut later = key.copy();
                prop_assert_eq!(later.give_back(&charged, units, end), 0);
                prop_assert_eq!(later.peek(end), key.peek(end));
                prop_assert_eq!(key.copy().give_back(&charged, units, end - 1), units);
            }
        }
        Ok(())
    });
}
