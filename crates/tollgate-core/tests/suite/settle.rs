//! Properties of settling. After a refund the key never admits more than if the refunded
//! units had not been charged. A refund is exact where the algorithm allows it.
//!
//! See `settle_interval.rs` for buckets that refill in intervals.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{Algorithm, Charged, Refill};

use crate::limiter::{Limiter, limiter, receipt, without_refunds};
use crate::trace::{Clock, Mode, Step, Trace, cases, check, every_rule, traces};

every_rule!(refunding_only_charge_leaves_fresh_key);
every_rule!(immediate_refund_undoes_charge);

/// When a refund makes the key equal to a key without the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exactness {
    /// The keys are equal if all requested units were refunded.
    Whole,
    /// The keys are equal if any unit was refunded. After a later request is scheduled, no units
    /// are refunded.
    WhileLast,
    /// The keys may differ, because the units may already have been refilled.
    LessThanRestored,
}

/// A trace, and a charge in it that is corrected some steps later.
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
    /// The last instant that the corrected key has seen. The spared key must have seen it too,
    /// because it would otherwise fall behind after a step back.
    seen: u64,
    pending: Option<(usize, Charged)>,
    /// Whether both keys must give the same answers from here on.
    equal: bool,
    settled: bool,
}

impl Pair {
    /// Drops fresh keys like a store.
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
            let same = without_refunds(decision) == without_refunds(other);
            prop_assert!(now < self.seen || same, "{decision:?} {other:?}");
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
        // Only a concurrency limit remembers the time of a refund.
        if plan.trace.policy.is_concurrency() {
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

fn check_refund(plan: &Plan, exactness: Exactness) -> TestCaseResult {
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
    // If a receipt outlives its key, the clock must not step back: after a key has expired, a step
    // back may grant the quota again.
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
    check(file!(), &plans(mode), |plan| check_refund(&plan, exactness));
}

cases!(law:
    fixed_window(Mode::FixedWindowCounter, Exactness::Whole),
    calendar_windows(Mode::CalendarWindows, Exactness::Whole),
    exact_log(Mode::LogExact, Exactness::Whole),
    concurrent_requests(Mode::ConcurrentRequests, Exactness::Whole),
    thousandth_log(Mode::LogThousandth, Exactness::Whole),
    sliding_window_counter(Mode::SlidingWindowCounter, Exactness::Whole),
    greedy_bucket(Mode::TokenGreedy, Exactness::LessThanRestored),
    meter(Mode::LeakyMeter, Exactness::LessThanRestored),
    queue(Mode::LeakyQueue, Exactness::WhileLast),
    queue_with_max_wait(Mode::LeakyQueueWithMaxWait, Exactness::WhileLast),
);

fn refunding_only_charge_leaves_fresh_key(trace: &Trace) -> TestCaseResult {
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
            // Units are not refunded after their interval is over, even if it did not restore all
            // units.
            continue;
        }
        // Until the clock has caught up with the charge, the key remembers its instant.
        prop_assert!(key.is_fresh(now.max(charged.charged_at.as_micros())));
        // Only the part that still counts is refunded, and in whole units, so the refund may be one
        // unit less than `whole`.
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

fn immediate_refund_undoes_charge(trace: &Trace) -> TestCaseResult {
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

/// The clock only moves forward from the refund on, because only one of the keys has seen that
/// instant.
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
        prop_assert_eq!(without_refunds(decision), without_refunds(other.request(now, units)));
        clock.note(&decision);
    }
    Ok(())
}
