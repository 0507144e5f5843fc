//! Bugs that the property tests of this suite found, each as a minimal example.

use std::time::Duration;

use tollgate_core::{Algorithm, LeakyMode, Micros, Policy, Quota, Resolution, Timestamp};

use crate::limiter::limiter;

const fn log(resolution: Resolution) -> Algorithm {
    Algorithm::SlidingWindowLog { resolution }
}

fn policy(limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    let quota = Quota::new(limit, Duration::from_micros(window));
    Policy::new("p", quota, algorithm).expect("builds")
}

/// The wait shortens as the clock goes on, even while it stands before the last charge
/// and nothing drains.
#[test]
fn a_queue_tells_the_exact_wait_after_a_step_back() {
    let max_wait = Some(Micros::new(20));
    let mode = LeakyMode::Queue { max_wait };
    let policy = policy(6, 54, Algorithm::LeakyBucket { mode });
    let mut key = limiter(&policy);
    assert!(key.request(15, 1).allows());
    // The first unit drains at 24: who comes at 0 would wait 4 too long.
    let denied = key.request(0, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(4)));
    assert!(key.assess(3, 1).denies());
    assert_eq!(key.assess(4, 1).delay(), Micros::new(20));
}

/// Or the answer would depend on whether the store has dropped the key in time.
#[test]
fn a_longer_window_does_not_revive_what_a_shorter_one_has_let_go() {
    let minute = policy(5, 60_000_000, log(Resolution::Exact));
    let hour = policy(5, 3_600_000_000, log(Resolution::Exact));
    let mut key = limiter(&minute);
    assert!(key.request(0, 5).allows());
    assert!(key.is_fresh(60_000_000));
    assert!(key.converted(&hour, 60_000_000).is_fresh(60_000_000));
    // One microsecond earlier the five units still count, so the conversion keeps them.
    assert_eq!(key.converted(&hour, 59_999_999).consumed(3_599_999_999), 5);
}

/// The coarse grid records the last charge at a later instant. A charge before that
/// instant is recorded at the same instant.
#[test]
fn a_log_read_on_a_finer_grid_tells_the_exact_reset() {
    let coarse = policy(5, 60_000_000, log(Resolution::Thousandth));
    let fine = policy(5, 60_000_000, log(Resolution::Exact));
    let mut key = limiter(&coarse);
    assert!(key.request(1, 1).allows());
    let mut key = key.converted(&fine, 1);
    let decision = key.request(2, 1);
    assert_eq!(decision.reset_after, Micros::new(60_060_000 - 2));
    assert!(!key.is_fresh(60_059_999));
    assert!(key.is_fresh(60_060_000));
}

/// A clock that has stepped back behind the last instant seen stands still at it.
#[test]
fn a_log_read_under_a_shorter_window_is_fresh_when_it_says_so() {
    let long = policy(2, 900, log(Resolution::Exact));
    let short = policy(2, 50, log(Resolution::Exact));
    let mut key = limiter(&long);
    assert!(key.request(0, 1).allows());
    assert!(key.request(90, 1).allows());
    let key = key.converted(&short, 140);
    assert_eq!(key.peek(10).reset_after, Micros::ZERO);
    assert!(key.is_fresh(10));
}

/// Nothing comes later than the last instant that there is, so nothing ends there.
#[test]
fn a_log_counts_at_the_last_instant_of_all() {
    let mut key = limiter(&policy(2, 1_000, log(Resolution::Exact)));
    let last = Timestamp::MAX.as_micros();
    let admitted = (0..5).filter(|_| key.request(last, 1).allows()).count();
    assert_eq!(admitted, 2);
}
