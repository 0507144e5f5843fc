//! The examples that are published with the algorithms, and the stories that made
//! people look for better ones.

use std::time::Duration;

use tollgate_core::{Algorithm, LeakyMode, Micros, Outcome, Policy, Quota, Refill, Resolution};

use crate::limiter::{Limiter, limiter, receipt};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

/// The start of a minute in January 2027; windows of the calendar begin with it.
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

/// How many of `count` requests at `now` pass.
fn passed(key: &mut dyn Limiter, now: u64, count: usize) -> usize {
    (0..count).filter(|_| key.request(now, 1).allows()).count()
}

#[test]
fn the_boundary_attack_on_a_hundred_a_minute() {
    for (algorithm, before, after) in [
        // The attack that made a name for itself: 200 within a second.
        (FIXED, 100, 100),
        (LOG, 100, 0),
        // All of the minute before still weighs.
        (COUNTER, 100, 0),
        // 100 a minute restore one unit in 0.6 s.
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
fn a_fixed_window_of_three_a_minute_lets_six_through_within_one() {
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
fn a_sliding_log_of_two_a_minute() {
    // Thousandths of a minute are 60 ms, and the charge at 00:01 falls between two.
    for (resolution, late) in [(Resolution::Exact, 0), (Resolution::Thousandth, 20_000)] {
        let mut key = key(Quota::per_minute(2), Algorithm::SlidingWindowLog { resolution });
        for (second, allows) in [(1, true), (30, true), (50, false), (100, true)] {
            let decision = key.request(MIDNIGHT + second * SECOND, 1);
            assert_eq!(decision.allows(), allows, "at {second} s");
            if !allows {
                // Once the charge at 00:01 is a minute old.
                let retry_after = Micros::new(11 * SECOND + late);
                assert_eq!(decision.retry_after(), Some(retry_after));
            }
        }
    }
}

/// A counter with `previous` units in the minute before and `current` in this one.
fn counted(limit: u64, previous: u64, current: u64, now: u64) -> Box<dyn Limiter> {
    let mut key = key(Quota::per_minute(limit), COUNTER);
    assert!(key.request(MIDNIGHT - MINUTE, previous).allows());
    assert!(key.request(now, current).allows());
    key
}

#[test]
fn a_sliding_counter_takes_the_past_to_have_been_even() {
    // 3 + 4 · 70 % = 5.8, rounded up to 6.
    let now = MIDNIGHT + 18 * SECOND;
    let key = counted(7, 4, 3, now);
    assert_eq!((key.consumed(now), key.peek(now).remaining), (6, 1));
    assert!(key.assess(now, 1).allows());
    // 60 + 80 · 25 % = 80, exactly.
    let now = MIDNIGHT + 45 * SECOND;
    let key = counted(100, 80, 60, now);
    assert_eq!((key.consumed(now), key.peek(now).remaining), (80, 20));
    assert_eq!(key.consumed(now - 1), 81);
}

/// The count again, all at once, a period after the first charge to a full bucket;
/// never more than the count, and periods of 50 µs count.
#[test]
fn a_bucket_refilled_all_at_once() {
    let period = 50;
    let quota = Quota::new(5, Duration::from_micros(period));
    let mut key = key(quota, INTERVAL);
    // The first request starts the timer, not the calendar.
    let start = MIDNIGHT + 17;
    assert_eq!(passed(&mut *key, start, 3), 3);
    assert_eq!(passed(&mut *key, start + 49, 9), 2);
    let denied = key.request(start + 49, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(1)));
    assert_eq!(passed(&mut *key, start + 50, 9), 5);
    let denied = key.request(start + 50, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(period)));
    // Idle periods do not add up, and a full bucket starts its timer anew.
    let late = start + 10 * period + 20;
    assert_eq!(passed(&mut *key, late, 9), 5);
    let denied = key.request(late + 30, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(20)));
}

/// Ten a minute: one departure every six seconds, whenever the requests arrive.
#[test]
fn a_queue_departs_evenly() {
    let mut key = key(Quota::per_minute(10), QUEUE);
    let leaves: Vec<_> = [0, 0, 1, 7, 7, 7, 30, 60]
        .into_iter()
        .map(|second| second + key.request(MIDNIGHT + second * SECOND, 1).delay().get() / SECOND)
        .collect();
    assert_eq!(leaves, [0, 6, 12, 18, 24, 30, 36, 60]);
    // A dear request keeps the next one waiting, not itself.
    let now = MIDNIGHT + 100 * SECOND;
    assert_eq!(key.request(now, 5).delay(), Micros::ZERO);
    assert_eq!(key.request(now, 1).delay(), Micros::new(30 * SECOND));
    // Six units are in the bucket, so four have room.
    assert_eq!(key.request(now, 5).retry_after(), Some(Micros::new(6 * SECOND)));
}

#[test]
fn who_would_wait_too_long_is_denied_until_the_queue_is_shorter() {
    let max_wait = Some(Micros::new(6 * SECOND));
    let mode = LeakyMode::Queue { max_wait };
    let mut key = key(Quota::per_minute(10), Algorithm::LeakyBucket { mode });
    assert_eq!(passed(&mut *key, MIDNIGHT, 10), 2);
    let denied = key.request(MIDNIGHT, 1);
    assert_eq!(denied.retry_after(), Some(Micros::new(6 * SECOND)));
    assert_eq!(denied.remaining, 0);
}

/// Others have been told when to leave, and two must not leave at once.
#[test]
fn a_place_in_the_queue_comes_back_only_while_it_is_the_last() {
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
        // The place is taken by the next, at the instant that was promised for it.
        let leaves = now + key.request(now, 1).delay().get();
        assert_eq!(leaves, places[2].leaves_at.as_micros());
    }
}

/// A counter whose expiry was renewed by denials locked an ordinary user out: of six
/// requests in three minutes at three a minute only three passed.
#[test]
fn nobody_is_locked_out_by_being_denied() {
    for algorithm in Algorithm::ALL.into_iter().chain([INTERVAL, METER]) {
        let quota = Quota::per_minute(3);
        let mut key = key(quota, algorithm);
        let story = [0, 30, 60, 90, 120, 150];
        let passed = story.map(|second| key.request(MIDNIGHT + second * SECOND, 1).allows());
        assert_eq!(passed, [true; 6], "{algorithm:?}");

        // The same user in a hurry: a denied request each millisecond delays nothing.
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
fn what_can_never_fit_is_told_so_and_not_to_come_back() {
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
    // A burst raises what fits at once, or lowers it.
    for (burst, cost, outcome) in [(5, 5, true), (5, 6, false), (2, 3, false)] {
        for algorithm in [TOKEN, INTERVAL, QUEUE, METER] {
            let mut key = key(Quota::per_minute(3).burst(burst), algorithm);
            assert_eq!(key.request(MIDNIGHT, cost).allows(), outcome);
        }
    }
}

/// Five GET, five POST, five SEARCH, five DELETE, a POST: a hundred units in all.
#[test]
fn a_weighted_hundred_a_minute_is_spent_to_the_last_unit() {
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

/// The log decides by its limit how finely it looks, unless it is told.
#[test]
fn a_log_is_exact_up_to_a_thousand_and_keeps_thousandths_above() {
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

/// The clock has stepped back out of the window that the state has seen: what was
/// consumed counts from that window on, not from the clock.
#[test]
fn a_change_of_the_window_while_the_clock_stands_behind_gives_nothing_away() {
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
