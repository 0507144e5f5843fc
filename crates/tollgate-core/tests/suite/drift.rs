//! A client that always retries exactly after `retry_after` gets exactly its quota in the long run.

use proptest::prelude::*;
use tollgate_core::{Algorithm, LeakyMode, Micros, Policy, Refill, Timestamp};

use crate::limiter::limiter;
use crate::long_run::stretched;
use crate::trace::{Mode, cases, check, starts};

/// Sends single-unit requests, each at the first instant at which it is allowed. Returns the
/// admission instants up to `end`.
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
            // The last admission may be past the end.
            admitted.retain(|at| *at <= end);
            return admitted;
        }
    }
}

/// A start, and policies whose units are at least a microsecond apart and few enough to count
/// individually.
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

/// After the first burst, `windows` windows admit exactly `windows` limits.
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
        // Some algorithms refill units slightly late. The span is extended by that delay, so it may
        // contain a few units from the next window.
        if late(window) == 0 {
            prop_assert_eq!(after, windows * per_window);
        } else {
            prop_assert!(after >= windows * per_window);
            prop_assert!(after <= (end - start).div_ceil(window) * per_window);
        }
        Ok(())
    });
}

cases!(admits_a_limit_per_window:
    fixed_window_admits_its_limit(Mode::FixedWindowCounter, |_| 0),
    exact_log_admits_its_limit(Mode::LogExact, |_| 0),
    thousandth_log_is_late_by_under_a_thousandth(Mode::LogThousandth, |window| {
        window.div_ceil(1_000) - 1
    }),
    interval_bucket_admits_its_limit(Mode::TokenInterval, |_| 0),
);

/// Because the previous window's share is rounded up.
#[test]
fn sliding_window_counter_admits_limit_minus_one() {
    let windows = stretched(20);
    check(file!(), &countable(Mode::SlidingWindowCounter), |(policy, start)| {
        let window = policy.window().get();
        let limit = policy.quota().limit();
        // Skip the burst's window and the window after it, which may not be steady yet if the burst
        // was late in its window.
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
        // With a capacity of 1, the bucket is already full (and a queue with zero wait already
        // empty) in the microsecond in which the next unit fits. The rest of that microsecond is
        // lost, so these policies follow the rate only if the interval is in whole microseconds.
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
        // The span consists of complete windows, so the rate gives an integer number of units.
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

cases!(follows_the_rate:
    greedy_bucket_follows_the_rate(Mode::TokenGreedy),
    queue_follows_the_rate(Mode::LeakyQueue),
    queue_with_max_wait_follows_the_rate(Mode::LeakyQueueWithMaxWait),
    meter_follows_the_rate(Mode::LeakyMeter),
);

/// 3 per 7 s does not give whole microseconds per unit, and 10^12 per 50 µs restores many units
/// each microsecond. Both must be exact even after a year.
#[test]
fn odd_rates_are_exact_over_a_year() {
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
