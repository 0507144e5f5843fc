//! Properties of leases: blocks of units that a replica spends without calling the store.

use std::time::Duration;

use crate::limiter::instant;
use crate::oracle::Oracle;
use crate::trace::{Clock, Gap, Mode, Units, check, gaps, starts, units};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::algorithm::Rule;
use tollgate_core::{
    Algorithm, Cost, Decision, LeakyMode, Lease, Micros, Policy, Quota, Refill, with_rule,
};
use tollgate_store_tests::reference::{Hold, Holds};

/// Replicas take blocks, spend them up to the last instant, settle them or die. In between,
/// individual requests are decided. The oracle sees every unit when it is spent.
fn limit_is_never_exceeded(policy: &Policy, start: u64, acts: &[Step]) -> TestCaseResult {
    let mut key = key(policy);
    let mut oracle = Oracle::new(policy);
    let mut clock = Clock::of(policy, start);
    let mut blocks: Vec<Block> = Vec::new();
    for step in acts {
        let mut now = clock.pass_forward(step.gap);
        match step.act {
            Act::Request(cost) => {
                let cost = cost.of(policy);
                let decision = key.request(now, cost);
                if decision.allows() {
                    prop_assert!(oracle.allows(now, cost), "{} at {}", cost, now);
                    oracle.take(now, cost);
                }
                clock.note(&decision);
            }
            Act::Grant(units, ttl) => {
                let ttl = (policy.window().get() * ttl / 8).max(1);
                let id = blocks.len() as u64;
                if let Some(hold) = key.grant(now, id, units.of(policy), ttl) {
                    prop_assert!(hold.until >= instant(now));
                    blocks.push(Block { hold, spent: 0, is_open: true });
                }
            }
            Act::Spend(index, units, at_the_last_instant) => {
                let Some(block) = pick(&mut blocks, index, now) else { continue };
                if at_the_last_instant {
                    clock.now = block.hold.until.as_micros();
                    now = clock.now;
                }
                let units = units.of(policy).min(block.hold.units - block.spent);
                block.spent += units;
                prop_assert!(oracle.allows(now, units), "{} of a block at {}", units, now);
                oracle.take(now, units);
            }
            Act::Settle(index) => {
                let Some(block) = pick(&mut blocks, index, now) else { continue };
                block.is_open = false;
                prop_assert!(key.settle(now, block.hold.id, block.spent));
            }
            Act::Die(index) => {
                let Some(block) = pick(&mut blocks, index, now) else { continue };
                block.is_open = false;
            }
        }
    }
    Ok(())
}

/// A key that never had the block gives the same answers.
fn unspent_lease_changes_no_state(policy: &Policy, start: u64, acts: &[Step]) -> TestCaseResult {
    let (mut key, mut spared) = (key(policy), key(policy));
    let mut clock = Clock::of(policy, start);
    for (id, step) in acts.iter().enumerate() {
        let now = clock.pass_forward(step.gap);
        match step.act {
            Act::Request(cost) => {
                let cost = cost.of(policy);
                let decision = key.request(now, cost);
                prop_assert_eq!(decision, spared.request(now, cost));
                clock.note(&decision);
            }
            Act::Grant(units, ttl) => {
                let ttl = policy.window().get() * ttl / 8 + 1;
                let Some(hold) = key.grant(now, id as u64, units.of(policy), ttl) else { continue };
                clock.now = hold.until.as_micros();
                let (beside, alone) = (key.request(clock.now, 0), spared.request(clock.now, 0));
                // While the lease is held, the remaining units drop by exactly its size.
                let left = alone.remaining.saturating_sub(hold.units);
                prop_assert_eq!(beside.remaining, left);
                prop_assert!(key.settle(clock.now, id as u64, 0));
            }
            Act::Spend(..) | Act::Settle(_) | Act::Die(_) => {}
        }
    }
    Ok(())
}

/// While leases are held, a request for the remaining units is allowed, and a request for more is
/// denied. A denied request is not allowed before `retry_after`, with the exceptions listed at
/// [`Holds::assess`].
fn decisions_account_for_leases(policy: &Policy, start: u64, acts: &[Step]) -> TestCaseResult {
    let mut key = key(policy);
    let mut clock = Clock::of(policy, start);
    for (id, step) in acts.iter().enumerate() {
        let now = clock.pass_forward(step.gap);
        match step.act {
            Act::Request(cost) => {
                let cost = cost.of(policy);
                let decision = key.request(now, cost);
                let remaining = decision.remaining;
                prop_assert!(key.copy().request(now, remaining).allows());
                prop_assert!(key.copy().request(now, remaining + 1).denies());
                let is_late =
                    policy.algorithm().expect("a limit") == Algorithm::SlidingWindowCounter;
                if let Some(retry_after) = decision.retry_after().filter(|_| !is_late) {
                    prop_assert!(retry_after > Micros::ZERO);
                    prop_assert!(key.copy().request(now + retry_after.get() - 1, cost).denies());
                }
                clock.note(&decision);
            }
            Act::Grant(units, ttl) => {
                let ttl = policy.window().get() * ttl / 8 + 1;
                let before = key.request(now, 0);
                if let Some(hold) = key.grant(now, id as u64, units.of(policy), ttl) {
                    let after = key.request(now, 0);
                    prop_assert_eq!(after.remaining, before.remaining - hold.units);
                } else {
                    prop_assert!(before.remaining == 0 || units.of(policy) == 0);
                }
            }
            Act::Spend(..) | Act::Settle(_) | Act::Die(_) => {}
        }
    }
    Ok(())
}

#[test]
fn number_of_leases_is_bounded() {
    let policy = Policy::sliding_window_log("p", Quota::per_minute(1_000)).unwrap();
    let mut key = key(&policy);
    for id in 0..Holds::MAX as u64 {
        assert!(key.grant(id, id, 1, 1_000_000).is_some());
    }
    assert!(key.grant(64, 64, 1, 1_000_000).is_none());
    // The last block expires after a second and counts for a further minute.
    assert_eq!(key.fresh_after(100), 1_000_063 + 60_000_000 - 100);
    assert!(key.grant(1_000_000, 65, 1, 1_000_000).is_none());
    assert!(key.grant(1_000_001, 65, 1, 1_000_000).is_some());
}

/// Clones of a machine may use the same ID, and could then settle each other's block.
#[test]
fn lease_ids_are_unique_per_key() {
    let policy = Policy::token_bucket("p", Quota::per_minute(100)).unwrap();
    let mut key = key(&policy);
    assert!(key.grant(0, 7, 8, 1_000).is_some());
    assert_eq!(key.grant(0, 7, 2, 1_000), None);
    assert!(key.settle(0, 7, 8));
    assert!(key.grant(0, 7, 2, 1_000).is_some());
}

#[test]
fn lease_expires_with_its_window() {
    for policy in [
        Policy::fixed_window_counter("p", Quota::per_minute(10)).unwrap(),
        Policy::sliding_window_counter("p", Quota::per_minute(10)).unwrap(),
    ] {
        let hold = key(&policy).grant(59_500_000, 1, 4, 1_000_000).unwrap();
        assert_eq!((hold.units, hold.until), (4, instant(59_999_999)));
    }
}

#[test]
fn unleasable_policies_are_rejected() {
    let queue = Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } };
    let interval = Algorithm::TokenBucket { refill: Refill::Interval };
    let greedy = Algorithm::TokenBucket { refill: Refill::Greedy };
    let second = Lease::of(1, 20);
    for (algorithm, lease, expected) in [
        (queue, second, "use the mode meter"),
        (interval, second, "use the greedy refill"),
        (greedy, Lease::of(0, 20), "a lease of 0/20 of the quota is not a share"),
        (greedy, Lease::of(3, 2), "a lease of 3/2 of the quota is not a share"),
        (greedy, Lease::of(0, 0), "a lease of 0/0 of the quota is not a share"),
        (
            greedy,
            second.ttl(Duration::from_millis(9)),
            "a lease's time to live of 9 milliseconds is outside 10 milliseconds to 60 seconds, the window",
        ),
        (
            greedy,
            second.ttl(Duration::from_secs(61)),
            "a lease's time to live of 61 seconds is outside",
        ),
    ] {
        let policy = Policy::new("p", Quota::per_minute(60), algorithm).unwrap();
        let error = policy.with_lease(lease).unwrap_err().to_string();
        assert!(error.starts_with("policy `p`: ") && error.contains(expected), "{error}");
    }
    let policy = Policy::new("p", Quota::per_minute(60), greedy).unwrap();
    let policy = policy.with_lease(second).unwrap();
    assert_eq!(policy.share(1, 2).unwrap().lease(), Some(second));
    assert_eq!((second.units(60), second.units(1_000_000), second.units(3)), (3, 50_000, 1));
}

/// An event for a key, and the time before it.
#[derive(Clone, Copy, Debug)]
struct Step {
    gap: Gap,
    act: Act,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Request(Units),
    /// Grants units for a time in eighths of the window.
    Grant(Units, u64),
    /// Spends units from an open lease, now or at its last instant.
    Spend(usize, Units, bool),
    Settle(usize),
    /// The replica dies, and the lease is never settled.
    Die(usize),
}

struct Block {
    hold: Hold,
    spent: u64,
    is_open: bool,
}

/// Selects a block that can be spent at `now`.
fn pick(blocks: &mut [Block], index: usize, now: u64) -> Option<&mut Block> {
    let mut open: Vec<_> = blocks
        .iter_mut()
        .filter(|block| block.is_open && block.hold.until >= instant(now))
        .collect();
    let index = index.checked_rem(open.len())?;
    Some(open.swap_remove(index))
}

fn lives(mode: Mode) -> impl Strategy<Value = (Policy, u64, Vec<Step>)> {
    let act = prop_oneof![
        4 => units().prop_map(Act::Request),
        4 => (units(), 0..=8_u64).prop_map(|(units, ttl)| Act::Grant(units, ttl)),
        6 => (0..8_usize, units(), prop::bool::weighted(0.3))
            .prop_map(|(index, units, last)| Act::Spend(index, units, last)),
        2 => (0..8_usize).prop_map(Act::Settle),
        1 => (0..8_usize).prop_map(Act::Die),
    ];
    let step = (gaps(), act).prop_map(|(gap, act)| Step { gap, act });
    (mode.policies(), starts(), prop::collection::vec(step, 1..=40))
}

/// One test per law and per mode that supports leases.
macro_rules! leased_rules {
    ($($test:ident $mode:ident)+) => {
        leased_rules!(@law limit_is_never_exceeded: $($test $mode)+);
        leased_rules!(@law unspent_lease_changes_no_state: $($test $mode)+);
        leased_rules!(@law decisions_account_for_leases: $($test $mode)+);
    };
    (@law $law:ident: $($test:ident $mode:ident)+) => {
        mod $law {
            use super::*;
            $(
                #[test]
                fn $test() {
                    check(file!(), &lives(Mode::$mode), |(policy, start, acts)| {
                        super::$law(&policy, start, &acts)
                    });
                }
            )+
        }
    };
}

leased_rules! {
    fixed_window_counter FixedWindowCounter
    sliding_window_log_exact LogExact
    sliding_window_log_thousandth LogThousandth
    sliding_window_counter SlidingWindowCounter
    token_bucket_greedy TokenGreedy
    leaky_bucket_meter LeakyMeter
}

/// A key and its holds, for any algorithm.
trait Leased {
    /// Decides on one charge and records it as a store does.
    fn request(&mut self, now: u64, cost: u64) -> Decision;
    fn grant(&mut self, now: u64, id: u64, units: u64, ttl: u64) -> Option<Hold>;
    fn settle(&mut self, now: u64, id: u64, used: u64) -> bool;
    fn fresh_after(&self, now: u64) -> u64;
    fn copy(&self) -> Box<dyn Leased>;
}

struct Key<R: Rule> {
    rule: R,
    state: R::State,
    holds: Holds,
}

fn key(policy: &Policy) -> Box<dyn Leased> {
    with_rule!(policy.rule(), rule => {
        let (rule, state) = (rule.clone(), rule.fresh());
        Box::new(Key { rule, state, holds: Holds::default() })
    })
}

impl<R: Rule> Leased for Key<R> {
    fn request(&mut self, now: u64, cost: u64) -> Decision {
        let (now, cost) = (instant(now), Cost::new(cost));
        let (mut state, mut holds) = (self.state.clone(), self.holds.clone());
        holds.lapse(&self.rule, &mut state, now);
        let decision = holds.assess(&self.rule, self.rule.refresh(&state, now), now, cost);
        if decision.allows() && cost > Cost::ZERO {
            self.rule.charge(&mut state, now, cost);
            (self.state, self.holds) = (state, holds);
        }
        decision
    }

    fn grant(&mut self, now: u64, id: u64, units: u64, ttl: u64) -> Option<Hold> {
        let now = instant(now);
        self.holds.lapse(&self.rule, &mut self.state, now);
        self.holds.grant(&self.rule, &self.state, now, id, units, Micros::new(ttl))
    }

    fn settle(&mut self, now: u64, id: u64, used: u64) -> bool {
        let now = instant(now);
        self.holds.lapse(&self.rule, &mut self.state, now);
        self.holds.settle(&self.rule, &mut self.state, now, id, used)
    }

    fn fresh_after(&self, now: u64) -> u64 {
        self.holds.fresh_after(&self.rule, &self.state, instant(now)).get()
    }

    fn copy(&self) -> Box<dyn Leased> {
        let Self { rule, state, holds } = self;
        Box::new(Self { rule: rule.clone(), state: state.clone(), holds: holds.clone() })
    }
}
