//! Long runs, in which sums grow and restart without ever overflowing.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Algorithm, Micros, Policy, Quota, Resolution};

use crate::limiter::limiter;
use crate::oracle::Oracle;
use crate::trace::{Clock, Gap, Mode, cases, check_cases, is_long, starts, steps};

/// Returns `length`, or fifty times as much with `TOLLGATE_LONG=1`.
pub(crate) fn stretched(length: u64) -> u64 {
    if is_long() { length * 50 } else { length }
}

/// Runs 20 000 steps for each mode, or a million in long tests: four policies, each with a stock of
/// steps that are drawn in a non-repeating order.
fn run_against_oracle(mode: Mode) {
    // A million windows of 400 days would exceed the last representable instant.
    let short = |policy: &Policy| policy.window() <= Micros::new(60_000_000);
    let policies = mode.policies().prop_filter("short windows", short);
    let lives = (policies, starts(), steps(200));
    check_cases(file!(), 4, &lives, |(policy, start, stock)| {
        let mut key = limiter(&policy);
        let mut oracle = Oracle::new(&policy);
        let mut clock = Clock::of(&policy, start);
        let mut draw = 0_usize;
        for i in 0..stretched(5_000) {
            // The multiplier and increment of Knuth's MMIX.
            draw = draw.wrapping_mul(6_364_136_223_846_793_005);
            draw = draw.wrapping_add(1_442_695_040_888_963_407);
            let step = stock[(draw >> 33) % stock.len()];
            // Reset the key regularly: the oracle then forgets its charges and does not become
            // slow.
            let gap = if i % 64 == 63 { Gap::Reset(0) } else { step.gap };
            let now = clock.pass_forward(gap);
            oracle.forget(now);
            let units = step.units.of(&policy);
            let decision = key.request(now, units);
            let fits = units <= policy.capacity() && oracle.allows(now, units);
            prop_assert_eq!(decision.allows(), fits, "{} at {}, step {}", units, now, i);
            if fits {
                oracle.take(now, units);
            }
            prop_assert_eq!(key.consumed(now), oracle.consumed(now));
            clock.note(&decision);
        }
        Ok(())
    });
}

cases!(run_against_oracle:
    fixed_window(Mode::FixedWindowCounter),
    exact_log(Mode::LogExact),
    thousandth_log(Mode::LogThousandth),
    sliding_window_counter(Mode::SlidingWindowCounter),
    greedy_bucket(Mode::TokenGreedy),
    interval_bucket(Mode::TokenInterval),
    queue(Mode::LeakyQueue),
    queue_with_max_wait(Mode::LeakyQueueWithMaxWait),
    meter(Mode::LeakyMeter),
);

/// Ten thousand full windows of 10^12 units add up to more than 2^53, which a Lua number cannot
/// represent exactly. The running totals must restart without changing any decision.
#[test]
fn log_counts_past_double_precision() {
    let quota = Quota::new(Policy::MAX_LIMIT, Duration::from_micros(50));
    let resolution = Resolution::Thousandth;
    let policy = Policy::new("p", quota, Algorithm::SlidingWindowLog { resolution }).unwrap();
    let mut key = limiter(&policy);
    let most = Policy::MAX_LIMIT;
    for half in 0..stretched(20_000) {
        let now = half * 25;
        let before = if half == 0 { 0 } else { most / 2 };
        assert_eq!(key.consumed(now), before);
        assert_eq!(key.request(now, most / 2).remaining, most / 2 - before);
        assert_eq!(key.consumed(now), before + most / 2);
        assert!(half == 0 || key.request(now, 1).denies());
    }
}
