//! Bugs found by this suite's property tests, each as a minimal example.

use std::time::Duration;

use tollgate_core::{Algorithm, LeakyMode, Micros, Policy, Quota, Resolution, Timestamp};

use crate::limiter::{limiter, receipt};

const fn log(resolution: Resolution) -> Algorithm {
    Algorithm::SlidingWindowLog { resolution }
}

fn policy(limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    let quota = Quota::new(limit, Duration::from_micros(window));
    Policy::new("p", quota, algorithm).expect("builds")
}

/// The wait gets shorter as the clock advances, even while the clock is behind the last charge and
/// the bucket does not drain.
#[test]
fn queue_wait_is_exact_after_step_back() {
    let max_wait = Some(Micros::new(20));
    let mode = LeakyMode::Queue { max_wait };
    let policy = policy(6, 54, Algorithm::LeakyBucket { mode });
    let mut key = limiter(&policy);
    assert!(key.request(15, 1).allows());
    // The first unit has drained at 24, so a request at 0 would wait 4 µs too long.
    let denied = key.request(0, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(4)));
    assert!(key.assess(3, 1).denies());
    assert_eq!(key.assess(4, 1).delay(), Micros::new(20));
}

/// Otherwise the answer would depend on when the store drops the key.
#[test]
fn longer_window_does_not_revive_expired_charges() {
    let minute = policy(5, 60_000_000, log(Resolution::Exact));
    let hour = policy(5, 3_600_000_000, log(Resolution::Exact));
    let mut key = limiter(&minute);
    assert!(key.request(0, 5).allows());
    assert!(key.is_fresh(60_000_000));
    assert!(key.converted(&hour, 60_000_000).is_fresh(60_000_000));
    // One microsecond earlier, the five units still count, so the conversion carries them over.
    assert_eq!(key.converted(&hour, 59_999_999).consumed(3_599_999_999), 5);
}

/// The coarse grid records the last charge at a later instant. A new charge before that instant is
/// recorded at the same instant.
#[test]
fn reset_is_exact_on_finer_grid() {
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

/// If the clock steps back behind the last instant seen, time stops at that instant.
#[test]
fn reset_is_exact_under_shorter_window() {
    let long = policy(2, 900, log(Resolution::Exact));
    let short = policy(2, 50, log(Resolution::Exact));
    let mut key = limiter(&long);
    assert!(key.request(0, 1).allows());
    assert!(key.request(90, 1).allows());
    let key = key.converted(&short, 139);
    assert_eq!(key.peek(10).reset_after, Micros::new(130));
    assert!(!key.is_fresh(139));
    assert!(key.is_fresh(140));
}

/// No instant follows the last representable one, so charges made then never expire.
#[test]
fn log_counts_at_last_instant() {
    let mut key = limiter(&policy(2, 1_000, log(Resolution::Exact)));
    let last = Timestamp::MAX.as_micros();
    let admitted = (0..5).filter(|_| key.request(last, 1).allows()).count();
    assert_eq!(admitted, 2);
}

/// A refund dropped the entries that had expired, so after a step back they no longer counted.
#[test]
fn refund_drops_no_charge_of_a_log() {
    for resolution in [Resolution::Exact, Resolution::Thousandth] {
        let mut key = limiter(&policy(4, 1_000, log(resolution)));
        assert!(key.request(0, 2).allows());
        let refunded = key.request(500, 1);
        let charged = receipt(&refunded, 500, 1).expect("allowed");
        assert_eq!(key.give_back(&charged, 1, 1_000), 1);
        assert_eq!((key.consumed(999), key.consumed(1_000)), (2, 0));
    }
}
