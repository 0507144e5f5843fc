//! Bounds on the units that are admitted in any span of time.
//!
//! These tests do not use the oracle. They check each algorithm's documented bounds for every pair
//! of admissions.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::Outcome;

use crate::limiter::limiter;
use crate::trace::{Clock, Trace, rules};

rules!(aligned_windows_stay_within_limit:
    fixed_window_counter FixedWindowCounter,
    sliding_window_counter SlidingWindowCounter,
);
rules!(any_window_stays_within_limit:
    sliding_window_log_exact LogExact,
    sliding_window_log_thousandth LogThousandth,
    concurrent_requests ConcurrentRequests,
);
rules!(weighted_windows_stay_within_limit:
    sliding_window_counter SlidingWindowCounter,
);
rules!(span_stays_within_burst_plus_rate:
    token_bucket_greedy TokenGreedy,
    leaky_bucket_meter LeakyMeter,
    leaky_bucket_queue LeakyQueue,
    leaky_bucket_queue_with_max_wait LeakyQueueWithMaxWait,
);
rules!(span_stays_within_burst_plus_intervals:
    token_bucket_interval TokenInterval,
);
rules!(departures_are_spaced_by_work:
    leaky_bucket_queue LeakyQueue,
    leaky_bucket_queue_with_max_wait LeakyQueueWithMaxWait,
);

/// An admission. After the clock steps back, it is recorded at the last instant seen.
#[derive(Clone, Copy)]
struct Admitted {
    at: u64,
    leaves: u64,
    units: u64,
}

/// A trace's admissions. Debts are not included, because they are taken without being admitted.
fn admitted(trace: &Trace) -> Vec<Admitted> {
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    let mut admitted = Vec::new();
    // After a step back, windows and intervals record charges at their own start. The test knows
    // the last instant seen more precisely.
    let mut seen = 0;
    for step in trace.steps.iter().filter(|step| !step.owed) {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        let decision = key.request(now, units);
        clock.note(&decision);
        if let Outcome::Allow { delay, .. } = decision.outcome
            && units > 0
        {
            seen = now.max(seen);
            admitted.push(Admitted { at: seen, leaves: now + delay.get(), units });
        }
    }
    admitted
}

/// Every run of consecutive admissions: first, last, units.
fn runs(admitted: &[Admitted]) -> impl Iterator<Item = (Admitted, Admitted, u128)> + '_ {
    admitted.iter().enumerate().flat_map(move |(i, first)| {
        let mut units = 0;
        admitted[i..].iter().map(move |last| {
            units += u128::from(last.units);
            (*first, *last, units)
        })
    })
}

fn aligned_windows_stay_within_limit(trace: &Trace) -> TestCaseResult {
    let window = trace.policy.window().get();
    for (first, last, units) in runs(&admitted(trace)) {
        if first.at / window == last.at / window {
            prop_assert!(units <= u128::from(trace.policy.capacity()));
        }
    }
    Ok(())
}

fn any_window_stays_within_limit(trace: &Trace) -> TestCaseResult {
    let window = trace.policy.window().get();
    for (first, last, units) in runs(&admitted(trace)) {
        if last.at - first.at < window {
            prop_assert!(units <= u128::from(trace.policy.capacity()));
        }
    }
    Ok(())
}

/// As a fraction: current + previous · (window − elapsed) / window ≤ limit. This bounds two
/// adjacent windows, and therefore any window across their boundary, by twice the limit.
fn weighted_windows_stay_within_limit(trace: &Trace) -> TestCaseResult {
    let window = trace.policy.window().get();
    let limit = u128::from(trace.policy.capacity());
    let admitted = admitted(trace);
    for (i, last) in admitted.iter().enumerate() {
        let index = last.at / window;
        let units_in = |index: u64| -> u128 {
            let within = admitted[..=i].iter().filter(|a| a.at / window == index);
            within.map(|a| u128::from(a.units)).sum()
        };
        let previous = index.checked_sub(1).map_or(0, units_in);
        let left = u128::from(window - last.at % window);
        let window = u128::from(window);
        prop_assert!(units_in(index) * window + previous * left <= limit * window);
        prop_assert!(units_in(index) + previous <= 2 * limit);
    }
    Ok(())
}

fn span_stays_within_burst_plus_rate(trace: &Trace) -> TestCaseResult {
    let window = u128::from(trace.policy.window().get());
    let limit = u128::from(trace.policy.quota().limit());
    let burst = u128::from(trace.policy.capacity());
    for (first, last, units) in runs(&admitted(trace)) {
        let span = u128::from(last.at - first.at);
        prop_assert!(units * window <= burst * window + limit * span);
    }
    Ok(())
}

fn span_stays_within_burst_plus_intervals(trace: &Trace) -> TestCaseResult {
    let window = trace.policy.window().get();
    let limit = u128::from(trace.policy.quota().limit());
    let burst = u128::from(trace.policy.capacity());
    for (first, last, units) in runs(&admitted(trace)) {
        // A span contains at most one interval boundary more than complete intervals.
        let ends = u128::from((last.at - first.at) / window + 1);
        prop_assert!(units <= burst + limit * ends);
    }
    Ok(())
}

/// This test also checks that no request is delayed by more than `max_wait`.
fn departures_are_spaced_by_work(trace: &Trace) -> TestCaseResult {
    let window = u128::from(trace.policy.window().get());
    let limit = u128::from(trace.policy.quota().limit());
    for (first, last, units) in runs(&admitted(trace)) {
        prop_assert!(first.leaves <= last.leaves);
        let work = units - u128::from(last.units);
        // Both instants are rounded up to a microsecond, so the span may be up to a microsecond too
        // short.
        let span = u128::from(last.leaves - first.leaves) + 1;
        prop_assert!(span * limit > work * window || work == 0);
    }
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let decision = key.request(now, step.units.of(&trace.policy));
        prop_assert!(decision.delay().get() <= max_wait(trace));
        clock.note(&decision);
    }
    Ok(())
}

fn max_wait(trace: &Trace) -> u64 {
    use tollgate_core::{Algorithm, LeakyMode, Micros};
    match trace.policy.algorithm().expect("a limit") {
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } } => {
            max_wait.map_or(u64::MAX, Micros::get)
        }
        _ => 0,
    }
}
