//! A client that always retries exactly after `retry_after` gets exactly its quota in the
//! long run.

use proptest::prelude::*;
use tollgate_core::{Algorithm, LeakyMode, Micros, Policy, Refill, Timestamp};

use crate::limiter::limiter;
use crate::long_run::stretched;
use crate::trace::{Mode, check, starts};

/// Unit requests, one after the other, each at the first instant at which it passes:
/// the instants at which they did, up to `end`.
fn insistent(policy: &Policy, start: u64, end: u64) -> Vec<u64> {
    let mut key = limiter(policy);
    let mut now = start;
    let mut admitted = Vec::new();
    loop {
        match key.request(now, 1).retry_after() {
            Some(retry_after) => {
                assert!(retry_after > Micros::ZERO, "a retry at the same instant");
                now += retry_after.get();
            }
            None => admitted.push(now),
        }
        if now > end {
            // The last admission may have been the one that went past the end.
            admitted.retain(|at| *at <= end);
            return admitted;
        }
    }
}

/// Policies whose units are at least a microsecond apart and few enough to count them
/// one by one, and a start.
fn countable(mode: Mode) -> impl Strategy<Value = (Policy, u64)> {
    let few = |policy: &Policy| {
        let quota = policy.quota();
        quota.limit() <= policy.window().get() && policy.capacity() <= 1_000
    };
    // Stores can express instants up to the year 2255.
    let expressible = |(policy, start): &(Policy, u64)| {
        let end = start + (stretched(20) + 3) * policy.window().get();
        end <= Timestamp::MAX.as_micros()
    };
    (mode.policies().prop_filter("few units", few), starts())
        .prop_filter("an end too far off", expressible)
}

fn long_after(start: u64, window: u64, windows: u64) -> u64 {
    start + windows * window
}

/// In the `windows` after the first burst: that many limits.
fn admits_a_limit_per_window(mode: Mode, late: fn(u64) -> u64) {
    let windows = stretched(20);
    check(file!(), &countable(mode), |(policy, start)| {
        let window = policy.window().get();
        let limit = policy.quota().limit();
        let per_window = limit.min(policy.capacity());
        let end = long_after(start, window + late(window), windows);
        let admitted = insistent(&policy, start, end);
        let after = admitted.iter().filter(|at| **at > start).count() as u64;
        let first = admitted.len() as u64 - after;
        prop_assert_eq!(first, policy.capacity());
        // Units of some algorithms may be refilled a little late. The span is longer by that
        // delay, so it may contain a few units of the next window.
        if late(window) == 0 {
            prop_assert_eq!(after, windows * per_window);
        } else {
            prop_assert!(after >= windows * per_window);
            prop_assert!(after <= (end - start).div_ceil(window) * per_window);
        }
        Ok(())
    });
}

#[test]
fn a_fixed_window_admits_its_limit_each_window() {
    admits_a_limit_per_window(Mode::FixedWindowCounter, |_| 0);
}

#[test]
fn an_exact_log_admits_its_limit_each_window() {
    admits_a_limit_per_window(Mode::LogExact, |_| 0);
}

#[test]
fn a_log_of_thousandths_is_late_by_less_than_one() {
    admits_a_limit_per_window(Mode::LogThousandth, |window| window.div_ceil(1_000) - 1);
}

#[test]
fn a_bucket_with_intervals_admits_its_limit_each_interval() {
    admits_a_limit_per_window(Mode::TokenInterval, |_| 0);
}

/// Because the share of the previous window is rounded up.
#[test]
fn a_sliding_window_counter_admits_one_less_than_its_limit() {
    let windows = stretched(20);
    check(file!(), &countable(Mode::SlidingWindowCounter), |(policy, start)| {
        let window = policy.window().get();
        let limit = policy.quota().limit();
        // The window of the burst lies behind, and one more: the burst may have
        // come late in its window, so that the next is not steady yet.
        let from = (start / window + 2) * window;
        let end = from + windows * window - 1;
        let steady: Vec<_> = insistent(&policy, start, end);
        let steady = steady.into_iter().filter(|at| *at >= from).count() as u64;
        let expected = if limit == 1 { windows / 2 } else { windows * (limit - 1) };
        prop_assert_eq!(steady, expected);
        Ok(())
    });
}

fn follows_the_rate(mode: Mode) {
    let windows = stretched(20);
    check(file!(), &countable(mode), |(policy, start)| {
        let (window, limit) = (policy.window().get(), policy.quota().limit());
        // A bucket of one unit is full, and a queue without waiting is empty, at the
        // microsecond at which the next unit fits. The fraction of a microsecond since then
        // is lost, so these policies follow the rate only if the interval is whole.
        let tight = policy.capacity() == 1 || max_wait(&policy) == Some(Micros::ZERO);
        prop_assume!(!tight || window.is_multiple_of(limit));
        let end = long_after(start, window, windows);
        let admitted = insistent(&policy, start, end);
        let first = admitted.iter().filter(|at| **at == start).count() as u64;
        if max_wait(&policy).is_none() {
            prop_assert_eq!(first, policy.capacity());
        }
        for (i, at) in admitted.iter().enumerate() {
            let admitted = u128::from(i as u64 + 1) * u128::from(window);
            let bound = u128::from(policy.capacity()) * u128::from(window)
                + u128::from(at - start) * u128::from(limit);
            prop_assert!(admitted <= bound);
        }
        // The span is whole windows, so the rate gives a whole number of units.
        let after = admitted.len() as u64 - first;
        prop_assert!(after.abs_diff(windows * limit) <= 1, "{} after {}", after, first);
        Ok(())
    });
}

fn max_wait(policy: &Policy) -> Option<Micros> {
    match policy.algorithm().expect("a limit") {
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } } => max_wait,
        _ => None,
    }
}

#[test]
fn a_greedy_bucket_follows_the_rate() {
    follows_the_rate(Mode::TokenGreedy);
}

#[test]
fn a_queue_follows_the_rate() {
    follows_the_rate(Mode::LeakyQueue);
}

#[test]
fn a_queue_with_a_longest_wait_follows_the_rate() {
    follows_the_rate(Mode::LeakyQueueWithMaxWait);
}

#[test]
fn a_meter_follows_the_rate() {
    follows_the_rate(Mode::LeakyMeter);
}

/// 3 per 7 s is no whole number of microseconds a unit, and 10^12 per 50 µs is many
/// units each microsecond; both come out even over a year.
#[test]
fn a_year_of_odd_rates_restores_exactly_what_it_should() {
    use std::time::Duration;
    use tollgate_core::Quota;
    let year = 365 * 86_400_000_000_u64;
    for (limit, window, spans) in
        [(3, 7_000_000_u64, year / 7_000_000), (1_000_000_000_000, 50, 10)]
    {
        let refill = Refill::Greedy;
        let quota = Quota::new(limit, Duration::from_micros(window));
        let policy = Policy::new("p", quota, Algorithm::TokenBucket { refill }).unwrap();
        let mut key = limiter(&policy);
        assert!(key.request(0, limit).allows());
        for span in 1..=spans.min(stretched(20_000)) {
            assert!(key.request(span * window - 1, limit).denies());
            assert!(key.request(span * window, limit).allows());
        }
    }
}
