//! Examples published with the algorithms, and the incidents that led people to look for better
//! algorithms.

use std::time::Duration;

use tollgate_core::{Algorithm, LeakyMode, Micros, Outcome, Policy, Quota, Refill, Resolution};

use crate::limiter::{Limiter, limiter, receipt};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

/// The start of a minute in January 2027, so aligned windows start with it.
const MIDNIGHT: u64 = 1_800_000_000 * SECOND;

const FIXED: Algorithm = Algorithm::FixedWindowCounter;
const LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Auto };
const COUNTER: Algorithm = Algorithm::SlidingWindowCounter;
const TOKEN: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };
const INTERVAL: Algorithm = Algorithm::TokenBucket { refill: Refill::Interval };
const QUEUE: Algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } };
const METER: Algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Meter };

fn policy(quota: Quota, algorithm: Algorithm) -> Policy {
    Policy::new("published", quota, algorithm).expect("a published quota builds")
}

fn key(quota: Quota, algorithm: Algorithm) -> Box<dyn Limiter> {
    limiter(&policy(quota, algorithm))
}

/// How many of `count` requests at `now` are allowed.
fn passed(key: &mut dyn Limiter, now: u64, count: usize) -> usize {
    (0..count).filter(|_| key.request(now, 1).allows()).count()
}

#[test]
fn boundary_attack_on_100_per_minute() {
    for (algorithm, before, after) in [
        // The well-known attack: 200 requests within a second.
        (FIXED, 100, 100),
        (LOG, 100, 0),
        // The entire previous minute still counts.
        (COUNTER, 100, 0),
        // At 100 per minute, one unit is restored every 0.6 s.
        (TOKEN, 100, 1),
        // The timer has run for a second.
        (INTERVAL, 100, 0),
        (QUEUE, 100, 1),
        (METER, 100, 1),
    ] {
        let mut key = key(Quota::per_minute(100), algorithm);
        let at_59 = passed(&mut *key, MIDNIGHT + 59 * SECOND, 100);
        let at_60 = passed(&mut *key, MIDNIGHT + 60 * SECOND, 100);
        assert_eq!((at_59, at_60), (before, after), "{algorithm:?}");
    }
}

#[test]
fn fixed_window_allows_double_across_boundary() {
    let mut key = key(Quota::per_minute(3), FIXED);
    let pass = [30, 40, 50, 60, 70, 80].map(|second| {
        let decision = key.request(MIDNIGHT + second * SECOND, 1);
        (decision.allows(), decision.remaining)
    });
    assert_eq!(pass, [2, 1, 0, 2, 1, 0].map(|remaining| (true, remaining)));
    let denied = key.request(MIDNIGHT + 90 * SECOND, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(30 * SECOND)));
}

#[test]
fn sliding_log_with_two_per_minute() {
    // Thousandths of a minute are 60 ms, and the charge at 00:01 is between two grid points.
    for (resolution, late) in [(Resolution::Exact, 0), (Resolution::Thousandth, 20_000)] {
        let mut key = key(Quota::per_minute(2), Algorithm::SlidingWindowLog { resolution });
        for (second, allows) in [(1, true), (30, true), (50, false), (100, true)] {
            let decision = key.request(MIDNIGHT + second * SECOND, 1);
            assert_eq!(decision.allows(), allows, "at {second} s");
            if !allows {
                // When the charge at 00:01 is a minute old.
                let retry_after = Micros::new(11 * SECOND + late);
                assert_eq!(decision.retry_after(), Some(retry_after));
            }
        }
    }
}

/// A counter with `previous` units in the previous minute and `current` units in this minute.
fn counted(limit: u64, previous: u64, current: u64, now: u64) -> Box<dyn Limiter> {
    let mut key = key(Quota::per_minute(limit), COUNTER);
    assert!(key.request(MIDNIGHT - MINUTE, previous).allows());
    assert!(key.request(now, current).allows());
    key
}

#[test]
fn sliding_counter_assumes_an_even_past() {
    // 3 + 4 · 70 % = 5.8, rounded up to 6.
    let now = MIDNIGHT + 18 * SECOND;
    let key = counted(7, 4, 3, now);
    assert_eq!((key.consumed(now), key.peek(now).remaining), (6, 1));
    assert!(key.assess(now, 1).allows());
    // 60 + 80 · 25 % = 80, exactly.
    let now = MIDNIGHT + 45 * SECOND;
    let key = counted(100, 80, 60, now);
    assert_eq!((key.consumed(now), key.peek(now).remaining), (80, 20));
    assert_eq!(counted(100, 80, 60, now - 1).consumed(now - 1), 81);
}

/// The full count is refilled one period after the first charge to a full bucket, and the bucket
/// never exceeds it. Periods of 50 µs work.
#[test]
fn interval_bucket_refills_in_full() {
    let period = 50;
    let quota = Quota::new(5, Duration::from_micros(period));
    let mut key = key(quota, INTERVAL);
    // The first request starts the timer; it is not aligned to the epoch.
    let start = MIDNIGHT + 17;
    assert_eq!(passed(&mut *key, start, 3), 3);
    assert_eq!(passed(&mut *key, start + 49, 9), 2);
    let denied = key.request(start + 49, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(1)));
    assert_eq!(passed(&mut *key, start + 50, 9), 5);
    let denied = key.request(start + 50, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(period)));
    // Idle periods do not accumulate, and a full bucket restarts its timer.
    let late = start + 10 * period + 20;
    assert_eq!(passed(&mut *key, late, 9), 5);
    let denied = key.request(late + 30, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(20)));
}

/// At ten per minute, requests leave every six seconds, whenever they arrive.
#[test]
fn queue_departs_evenly() {
    let mut key = key(Quota::per_minute(10), QUEUE);
    let leaves: Vec<_> = [0, 0, 1, 7, 7, 7, 30, 60]
        .into_iter()
        .map(|second| second + key.request(MIDNIGHT + second * SECOND, 1).delay().get() / SECOND)
        .collect();
    assert_eq!(leaves, [0, 6, 12, 18, 24, 30, 36, 60]);
    // An expensive request delays the next request, not itself.
    let now = MIDNIGHT + 100 * SECOND;
    assert_eq!(key.request(now, 5).delay(), Micros::ZERO);
    assert_eq!(key.request(now, 1).delay(), Micros::new(30 * SECOND));
    // The bucket contains six units, so four more fit.
    assert_eq!(key.request(now, 5).retry_after(), Some(Micros::new(6 * SECOND)));
}

#[test]
fn queue_denies_waits_over_max_wait() {
    let max_wait = Some(Micros::new(6 * SECOND));
    let mode = LeakyMode::Queue { max_wait };
    let mut key = key(Quota::per_minute(10), Algorithm::LeakyBucket { mode });
    assert_eq!(passed(&mut *key, MIDNIGHT, 10), 2);
    let denied = key.request(MIDNIGHT, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(6 * SECOND)));
    assert_eq!(denied.remaining, 0);
}

/// Later requests already have their departure times, and two must not leave at the same time.
#[test]
fn only_last_place_in_queue_is_refunded() {
    for later in [0, SECOND] {
        let mut key = key(Quota::per_minute(10), QUEUE);
        let mut places = Vec::new();
        for now in [MIDNIGHT, MIDNIGHT, MIDNIGHT + later] {
            let decision = key.request(now, 1);
            places.push(receipt(&decision, now, 1).unwrap());
        }
        let now = MIDNIGHT + later;
        assert_eq!(key.give_back(&places[1], 1, now), 0);
        assert_eq!(key.give_back(&places[2], 1, now), 1);
        // The next request takes the place, and leaves when the refunded request would have left.
        let leaves = now + key.request(now, 1).delay().get();
        assert_eq!(leaves, places[2].leaves_at.as_micros());
    }
}

/// A counter whose expiry was extended by denials once locked out an ordinary user: at three per
/// minute, only three of six requests within three minutes were allowed.
#[test]
fn denials_do_not_lock_out_clients() {
    for algorithm in Algorithm::ALL.into_iter().chain([INTERVAL, METER]) {
        let quota = Quota::per_minute(3);
        let mut key = key(quota, algorithm);
        let story = [0, 30, 60, 90, 120, 150];
        let passed = story.map(|second| key.request(MIDNIGHT + second * SECOND, 1).allows());
        assert_eq!(passed, [true; 6], "{algorithm:?}");

        // The same user in a hurry: a denied request every millisecond does not delay the next
        // success.
        let (mut calm, mut hasty) = (limiter(&policy(quota, algorithm)), key.copy());
        let start = MIDNIGHT + 10 * MINUTE;
        assert!(calm.request(start, 3).allows());
        assert!(hasty.request(start, 3).allows());
        let Outcome::Deny { retry_after } = calm.request(start, 1).outcome else {
            panic!("{algorithm:?} has admitted four")
        };
        let retry_at = start + retry_after.get();
        for now in (start..retry_at).step_by(1_000) {
            assert!(hasty.request(now, 1).denies());
        }
        assert!(hasty.request(retry_at, 1).allows(), "{algorithm:?}");
    }
}

#[test]
fn oversized_cost_is_never_retried() {
    for algorithm in Algorithm::ALL.into_iter().chain([INTERVAL, METER]) {
        let policy = policy(Quota::per_minute(3), algorithm);
        let mut key = limiter(&policy);
        for used in 0..=3 {
            for cost in [4, 5, 1_000_000_000_000, u64::MAX] {
                let decision = key.request(MIDNIGHT, cost);
                assert_eq!(decision.outcome, Outcome::ExceedsCapacity, "{algorithm:?}");
                assert!(decision.denies());
                assert_eq!(decision.retry_after(), None);
                assert_eq!(decision.remaining, 3 - used);
            }
            key.request(MIDNIGHT, 1);
        }
    }
    // A burst raises or lowers the largest cost that fits.
    for (burst, cost, outcome) in [(5, 5, true), (5, 6, false), (2, 3, false)] {
        for algorithm in [TOKEN, INTERVAL, QUEUE, METER] {
            let mut key = key(Quota::per_minute(3).burst(burst), algorithm);
            assert_eq!(key.request(MIDNIGHT, cost).allows(), outcome);
        }
    }
}

/// Five GET, five POST, five SEARCH, five DELETE and another POST: a hundred units in total.
#[test]
fn weighted_costs_spend_the_full_quota() {
    let mut key = key(Quota::per_minute(100), LOG);
    let mut left = 100;
    let costs = [1, 5, 3, 10].into_iter().flat_map(|cost| [cost; 5]);
    for cost in costs.chain([5]) {
        left -= cost;
        assert_eq!(key.request(MIDNIGHT, cost).remaining, left);
    }
    let denied = key.request(MIDNIGHT + SECOND, 1);
    assert_eq!((left, denied.remaining), (0, 0));
    assert_eq!(denied.retry_after(), Some(Micros::new(59 * SECOND)));
}

/// By default, the limit determines the log's resolution.
#[test]
fn log_resolution_depends_on_limit() {
    for (limit, resolution, grid) in [
        (1_000, Resolution::Auto, 1),
        (1_001, Resolution::Auto, 60_000),
        (100_000, Resolution::Exact, 1),
        (1, Resolution::Thousandth, 60_000),
    ] {
        let log = Algorithm::SlidingWindowLog { resolution };
        let mut key = key(Quota::per_minute(limit), log);
        let decision = key.request(MIDNIGHT + 1, limit);
        let expected = MINUTE + grid - 1;
        assert_eq!(decision.reset_after.get(), expected, "{limit} {resolution:?}");
    }
}

/// A clock that was ahead delays units by its correction, and not by more.
#[test]
fn clock_correction_delays_units_by_its_step() {
    const STEP: u64 = 25 * SECOND;
    for algorithm in [FIXED, LOG, COUNTER, TOKEN, INTERVAL, QUEUE, METER] {
        let mut key = key(Quota::new(5, Duration::from_secs(10)), algorithm);
        assert!(key.request(MIDNIGHT + 3 * SECOND, 5).allows());
        let wait = |now| key.assess(now, 1).retry_after().map(Micros::get);
        let without_step = wait(MIDNIGHT + 3 * SECOND).expect("the quota is used up");
        let corrected = MIDNIGHT + 3 * SECOND - STEP;
        assert_eq!(wait(corrected), Some(without_step + STEP), "{algorithm}");
        assert!(key.assess(corrected + without_step + STEP, 1).allows(), "{algorithm}");
    }
}

/// The clock has stepped back out of the window that the state has seen. The consumed units count
/// from that window on, not from the clock.
#[test]
fn window_change_after_step_back_grants_no_units() {
    for algorithm in [FIXED, COUNTER] {
        let mut key = key(Quota::per_minute(3), algorithm);
        assert!(key.request(MIDNIGHT + 65 * SECOND, 3).allows());
        let tens = policy(Quota::new(3, Duration::from_secs(10)), algorithm);
        let key = key.converted(&tens, MIDNIGHT + 45 * SECOND);
        for second in [45, 59, 60, 69] {
            assert_eq!(key.consumed(MIDNIGHT + second * SECOND), 3, "at {second} s");
        }
    }
}
