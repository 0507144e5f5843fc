//! Properties of settling. After a refund the key never admits more than if the refunded
//! units had not been charged. A refund is exact where the algorithm allows it.
//!
//! A bucket that refills in intervals has its own file: see `settle_interval.rs`.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{Algorithm, Charged, Refill};

use crate::limiter::{Limiter, limiter, receipt};
use crate::trace::{Clock, Mode, Step, Trace, check, every_rule, traces};

every_rule!(a_lone_charge_comes_back_as_far_as_it_counts_and_leaves_a_fresh_key);
every_rule!(a_charge_given_back_at_once_was_never_made);

/// When a refund makes the key equal to a key without the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exactness {
    /// The keys are equal if all requested units were refunded.
    Whole,
    /// The keys are equal if any unit was refunded. Once a later request is scheduled, nothing
    /// is refunded.
    WhileLast,
    /// The keys may differ, because the units may already have been refilled.
    LessThanRestored,
}

/// A trace, and the one charge in it that is corrected some steps later.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) trace: Trace,
    /// The first admission from this step on is corrected.
    pub(crate) pick: usize,
    pub(crate) later: usize,
    /// The part of the charge that is refunded, in quarters.
    pub(crate) quarters: u64,
}

impl Plan {
    pub(crate) fn returns(&self, cost: u64) -> u64 {
        (cost * self.quarters).div_ceil(4)
    }
}

pub(crate) fn plans(mode: Mode) -> impl Strategy<Value = Plan> {
    let quarters = prop_oneof![2 => Just(4), 1 => 1..=3_u64];
    let plan = (traces(mode, 32), 0..16_usize, 0..8_usize, quarters);
    plan.prop_map(|(trace, pick, later, quarters)| Plan { trace, pick, later, quarters })
}

/// `corrected` was charged and then refunded. `spared` was charged the smaller cost from
/// the start, and receives only the requests that `corrected` admits.
struct Pair {
    corrected: Box<dyn Limiter>,
    spared: Box<dyn Limiter>,
    /// The last instant that the corrected key has seen. The spared key has to have
    /// seen it too, or a step back would set it behind.
    seen: u64,
    pending: Option<(usize, Charged)>,
    /// From here on both keys have to give the same answers.
    equal: bool,
    settled: bool,
}

impl Pair {
    /// Drops fresh keys as a store does.
    fn drop_if_fresh(&mut self, trace: &Trace, now: u64) -> Result<bool, TestCaseError> {
        if !self.corrected.is_fresh(now) {
            return Ok(false);
        }
        prop_assert!(self.spared.is_fresh(now.max(self.seen)));
        self.corrected = limiter(&trace.policy);
        self.spared = limiter(&trace.policy);
        self.seen = 0;
        Ok(true)
    }

    fn step(
        &mut self,
        i: usize,
        step: Step,
        now: u64,
        clock: &mut Clock,
        plan: &Plan,
    ) -> TestCaseResult {
        let units = step.units.of(&plan.trace.policy);
        let then = now.max(self.seen);
        if step.owed {
            let owed = self.corrected.owe(units, now);
            prop_assert_eq!(self.spared.owe(owed, then), owed);
            self.seen = then;
            return Ok(());
        }
        let decision = self.corrected.request(now, units);
        clock.note(&decision);
        if self.equal {
            let other = self.spared.assess(then, units);
            prop_assert!(now < self.seen || decision == other, "{other:?}");
        }
        let Some(charged) = receipt(&decision, now, units) else {
            return Ok(());
        };
        self.seen = then;
        let mut kept = units;
        if i >= plan.pick && self.pending.is_none() && !self.settled {
            self.pending = Some((i, charged));
            kept -= plan.returns(units);
        }
        prop_assert!(self.spared.assess(then, kept).allows(), "{} at {}", kept, now);
        if kept > 0 {
            self.spared.charge(then, kept);
        }
        Ok(())
    }

    fn settle(
        &mut self,
        charged: &Charged,
        now: u64,
        exactness: Exactness,
        plan: &Plan,
    ) -> TestCaseResult {
        let units = plan.returns(charged.cost.get());
        let returned = self.corrected.give_back(charged, units, now);
        prop_assert!(returned <= units);
        self.settled = true;
        // A queue takes the charge out of its past and does not look at the clock.
        if exactness != Exactness::WhileLast {
            self.seen = now.max(self.seen);
        }
        self.equal = match exactness {
            Exactness::Whole => returned == units,
            Exactness::WhileLast => returned > 0,
            Exactness::LessThanRestored => false,
        };
        Ok(())
    }
}

fn the_law(plan: &Plan, exactness: Exactness) -> TestCaseResult {
    let trace = &plan.trace;
    let mut pair = Pair {
        corrected: limiter(&trace.policy),
        spared: limiter(&trace.policy),
        seen: 0,
        pending: None,
        equal: false,
        settled: false,
    };
    let mut clock = Clock::new(trace);
    // A receipt that outlives its key must not meet a clock that steps back behind it:
    // after a key expired, a step back may grant a quota again.
    let mut floor = 0;
    for (i, step) in trace.steps.iter().enumerate() {
        let now = clock.pass(step.gap).max(floor);
        clock.now = now;
        if pair.drop_if_fresh(trace, now)? && pair.pending.is_some() {
            floor = now;
        }
        pair.step(i, *step, now, &mut clock, plan)?;
        if let Some((since, charged)) = pair.pending
            && i - since == plan.later
        {
            pair.pending = None;
            pair.settle(&charged, now, exactness, plan)?;
        }
        let (corrected, spared) = (&pair.corrected, &pair.spared);
        prop_assert!(corrected.consumed(now) >= spared.consumed(now.max(pair.seen)));
    }
    Ok(())
}

fn law(mode: Mode, exactness: Exactness) {
    check(file!(), &plans(mode), |plan| the_law(&plan, exactness));
}

#[test]
fn a_fixed_window_is_as_if_the_charge_had_not_been_made() {
    law(Mode::FixedWindowCounter, Exactness::Whole);
}

#[test]
fn calendar_windows() {
    law(Mode::CalendarWindows, Exactness::Whole);
}

#[test]
fn an_exact_log_is_as_if_the_charge_had_not_been_made() {
    law(Mode::LogExact, Exactness::Whole);
}

#[test]
fn what_was_in_flight_is_as_if_it_had_not_been() {
    law(Mode::ConcurrentRequests, Exactness::Whole);
}

#[test]
fn a_log_of_thousandths_is_as_if_the_charge_had_not_been_made() {
    law(Mode::LogThousandth, Exactness::Whole);
}

#[test]
fn a_sliding_window_counter_is_as_if_the_charge_had_not_been_made() {
    law(Mode::SlidingWindowCounter, Exactness::Whole);
}

#[test]
fn a_greedy_bucket_admits_no_more_than_without_the_charge() {
    law(Mode::TokenGreedy, Exactness::LessThanRestored);
}

#[test]
fn a_meter_admits_no_more_than_without_the_charge() {
    law(Mode::LeakyMeter, Exactness::LessThanRestored);
}

#[test]
fn a_queue_admits_no_more_than_without_the_charge() {
    law(Mode::LeakyQueue, Exactness::WhileLast);
}

#[test]
fn a_queue_with_a_longest_wait_admits_no_more_than_without_the_charge() {
    law(Mode::LeakyQueueWithMaxWait, Exactness::WhileLast);
}

fn a_lone_charge_comes_back_as_far_as_it_counts_and_leaves_a_fresh_key(
    trace: &Trace,
) -> TestCaseResult {
    for step in &trace.steps {
        let mut key = limiter(&trace.policy);
        let mut clock = Clock::new(trace);
        let cost = step.units.of(&trace.policy);
        let decision = key.request(trace.start, cost);
        clock.note(&decision);
        let Some(charged) = receipt(&decision, trace.start, cost) else {
            continue;
        };
        let now = clock.pass(step.gap);
        let whole = key.consumed(now);
        let fresh = key.is_fresh(now);
        let returned = key.give_back(&charged, cost, now);
        if is_interval(trace) && returned == 0 {
            // An interval that is over is settled, even if it did not restore all.
            continue;
        }
        prop_assert!(key.is_fresh(now));
        // Only the part that still counts is refunded, and whole units are reported, so the
        // refund may be one unit less than `whole`.
        prop_assert!(returned <= cost);
        prop_assert!(returned + 1 >= whole);
        prop_assert!(!fresh || returned == 0);
    }
    Ok(())
}

fn is_interval(trace: &Trace) -> bool {
    let refill = Refill::Interval;
    trace.policy.algorithm().expect("a limit") == Algorithm::TokenBucket { refill }
}

fn a_charge_given_back_at_once_was_never_made(trace: &Trace) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for (i, step) in trace.steps.iter().enumerate() {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            key.owe(units, now);
            continue;
        }
        let mut corrected = key.copy();
        let decision = key.request(now, units);
        clock.note(&decision);
        let Some(charged) = receipt(&decision, now, units) else {
            continue;
        };
        let untouched = corrected.copy();
        corrected.charge(now, units);
        prop_assert_eq!(corrected.give_back(&charged, units, now), units);
        prop_assert_eq!(corrected.is_fresh(now), untouched.is_fresh(now));
        answers_are_the_same(&*corrected, &*untouched, &clock, &trace.steps[i..], trace)?;
    }
    Ok(())
}

/// Over a clock that goes on from the give-back: that it was asked for is something
/// that only one of the keys has seen.
fn answers_are_the_same(
    one: &dyn Limiter,
    other: &dyn Limiter,
    clock: &Clock,
    steps: &[Step],
    trace: &Trace,
) -> TestCaseResult {
    let (mut one, mut other) = (one.copy(), other.copy());
    let mut clock = clock.clone();
    for step in steps {
        let now = clock.pass_forward(step.gap);
        let units = step.units.of(&trace.policy);
        let decision = one.request(now, units);
        prop_assert_eq!(decision, other.request(now, units));
        clock.note(&decision);
    }
    Ok(())
}
