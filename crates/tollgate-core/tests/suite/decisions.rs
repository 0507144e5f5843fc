//! Properties of a single decision.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{Micros, Outcome};

use crate::limiter::limiter;
use crate::oracle::Oracle;
use crate::trace::{Clock, Trace, each_decision, every_rule};

every_rule!(decision_matches_oracle);
every_rule!(retry_after_is_exact);
every_rule!(denial_changes_no_state);
every_rule!(remaining_is_exact);
every_rule!(peeking_changes_no_state);
every_rule!(consumed_is_at_most_twice_capacity);

fn decision_matches_oracle(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let mut oracle = Oracle::new(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            prop_assert_eq!(key.owe(units, now), oracle.owe(now, units));
        } else {
            let decision = key.request(now, units);
            prop_assert_eq!(decision, oracle.request(now, units), "{} at {}", units, now);
            clock.note(&decision);
        }
        prop_assert_eq!(key.consumed(now), oracle.consumed(now));
    }
    Ok(())
}

fn retry_after_is_exact(trace: &Trace) -> TestCaseResult {
    each_decision(trace, |key, now, units, decision| {
        if let Outcome::Deny { retry_after } = decision.outcome {
            prop_assert!(retry_after > Micros::ZERO);
            let retry_at = now + retry_after.get();
            prop_assert!(key.assess(retry_at - 1, units).denies());
            prop_assert!(key.assess(retry_at, units).allows());
        }
        Ok(())
    })
}

fn denial_changes_no_state(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    // The same key without the denied requests.
    let mut spared = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            key.owe(units, now);
            spared.owe(units, now);
            continue;
        }
        let decision = key.request(now, units);
        if !decision.denies() {
            prop_assert_eq!(spared.request(now, units), decision);
        }
        prop_assert_eq!(key.state(), spared.state());
        clock.note(&decision);
    }
    Ok(())
}

fn remaining_is_exact(trace: &Trace) -> TestCaseResult {
    each_decision(trace, |key, now, _, decision| {
        let remaining = decision.remaining;
        prop_assert!(remaining <= decision.limit);
        prop_assert!(key.assess(now, remaining).allows());
        prop_assert!(key.assess(now, remaining + 1).denies());
        Ok(())
    })
}

fn peeking_changes_no_state(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        let before = key.state();
        let peeked = key.request(now, 0);
        prop_assert!(peeked.allows());
        prop_assert_eq!(peeked.delay(), Micros::ZERO);
        prop_assert_eq!(key.state(), before);
        if step.owed {
            key.owe(units, now);
            continue;
        }
        let decision = key.request(now, units);
        // A peek returns the same numbers as the decision before it.
        let after = key.peek(now);
        prop_assert_eq!(after.remaining, decision.remaining);
        prop_assert_eq!(after.reset_after, decision.reset_after);
        prop_assert_eq!(after.limit, decision.limit);
        clock.note(&decision);
    }
    Ok(())
}

/// With debts, at most twice the capacity counts; without debts, at most the capacity.
fn consumed_is_at_most_twice_capacity(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    let mut in_debt = false;
    for step in &trace.steps {
        let now = clock.pass_forward(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            key.owe(units, now);
            in_debt = true;
        } else {
            clock.note(&key.request(now, units));
        }
        let bound = if in_debt { 2 } else { 1 } * trace.policy.capacity();
        prop_assert!(key.consumed(now) <= bound);
    }
    Ok(())
}
