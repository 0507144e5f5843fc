//! Valid and invalid policies.

use super::*;

const NANOS: fn(u64) -> Duration = Duration::from_nanos;

#[test]
fn invalid_policy_errors_suggest_a_fix() {
    let bucket = Algorithm::TokenBucket { refill: Refill::Greedy };
    let interval = Algorithm::TokenBucket { refill: Refill::Interval };
    let exact = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
    for (quota, algorithm, expected) in [
        (
            Quota::per_second(0),
            bucket,
            "a limit of 0 is outside 1 to 1000000000000; the minimum is 1",
        ),
        (Quota::per_day(u64::MAX), bucket, "the maximum is 1000000000000"),
        (Quota::per_second(1).burst(0), bucket, "a burst of 0 is outside"),
        (Quota::new(1, NANOS(49_000)), bucket, "a window of 49µs is outside 50 µs to 400 days"),
        (Quota::new(1, NANOS(50_001)), bucket, "50.001µs is not a whole number of microseconds"),
        (Quota::new(1, Duration::from_secs(400 * 86_400 + 1)), bucket, "outside 50 µs to 400 days"),
        (Quota::per_day(123_457), bucket, "the nearest limit that works is 123456"),
        (Quota::per_day(1).burst(1_000_000), interval, "the nearest limit that works is 20"),
        (
            Quota::per_second(5).burst(9),
            Algorithm::FixedWindowCounter,
            "fixed_window_counter has no burst",
        ),
        (
            Quota::per_day(100_001),
            exact,
            "a log of 100001 units is more than 100000 at full resolution",
        ),
    ] {
        let error = Policy::new("p", quota, algorithm).unwrap_err().to_string();
        assert!(error.starts_with("policy `p`: ") && error.contains(expected), "{error}");
    }
    for name in ["", "naïve", "tab\t", &"x".repeat(129)] {
        let error = Policy::fixed_window_counter(name, Quota::per_second(1)).unwrap_err();
        assert!(error.to_string().contains("1 to 128 printable ASCII"), "{error}");
    }
}

#[test]
fn extreme_quotas_build() {
    for algorithm in Algorithm::ALL {
        for quota in [
            Quota::new(1, Policy::MIN_WINDOW),
            Quota::new(1, Policy::MAX_WINDOW),
            Quota::new(Policy::MAX_LIMIT, Policy::MIN_WINDOW),
            Quota::per_day(1_000_000),
            Quota::new(3, Duration::from_secs(7)),
        ] {
            Policy::new("p", quota, algorithm).unwrap();
        }
    }
}

#[test]
fn interval_refill_needs_no_round_rate() {
    let interval = Algorithm::TokenBucket { refill: Refill::Interval };
    Policy::new("p", Quota::per_day(123_457), interval).unwrap();
    let error = Policy::new("p", Quota::per_day(1).burst(1_000_000), interval).unwrap_err();
    let nearest = error.nearest_limit().unwrap();
    let build = |limit| Policy::new("p", Quota::per_day(limit).burst(1_000_000), interval);
    assert!(build(nearest).is_ok() && build(nearest - 1).is_err());
}

#[test]
fn nearest_limit_builds() {
    let error = Policy::token_bucket("p", Quota::per_day(123_457)).unwrap_err();
    let nearest = error.nearest_limit().unwrap();
    Policy::token_bucket("p", Quota::per_day(nearest)).unwrap();
}

#[test]
fn equivalent_quotas_share_state() {
    let (ten, hundred) = (Quota::per_second(10), Quota::new(100, Duration::from_secs(10)));
    let token = |refill| Algorithm::TokenBucket { refill };
    let queue = |max_wait| Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let meter = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
    let log = |resolution| Algorithm::SlidingWindowLog { resolution };
    let end = Micros::new((1 << 53) - 1);
    let greedy = token(Refill::Greedy);
    for (one, other, shared) in [
        ((ten.burst(5), greedy), (hundred.burst(5), greedy), true),
        ((ten.burst(5), greedy), (hundred.burst(6), greedy), false),
        ((ten.burst(5), greedy), (ten.burst(5), token(Refill::Interval)), false),
        (
            (ten.burst(5), token(Refill::Interval)),
            (hundred.burst(5), token(Refill::Interval)),
            false,
        ),
        ((ten.burst(5), queue(None)), (hundred.burst(5), queue(None)), true),
        ((ten.burst(5), meter), (hundred.burst(5), meter), true),
        ((ten, queue(Some(end))), (ten, queue(Some(Micros::MAX))), true),
        ((ten, queue(None)), (ten, queue(Some(Micros::MAX))), false),
        ((ten, log(Resolution::Auto)), (ten, log(Resolution::Exact)), true),
        ((ten, log(Resolution::Auto)), (ten, log(Resolution::Thousandth)), false),
        ((ten, Algorithm::FixedWindowCounter), (hundred, Algorithm::FixedWindowCounter), false),
    ] {
        let policy = |(quota, algorithm)| Policy::new("p", quota, algorithm).unwrap();
        let (one, other) = (policy(one), policy(other));
        assert_eq!(one.shares_state_with(&other), shared, "{one:?} {other:?}");
        assert_ne!(one, other);
        let renamed = Policy::new("q", one.quota(), one.kind()).unwrap();
        assert!(!one.shares_state_with(&renamed));
    }
}

#[test]
fn calendar_quotas_need_fixed_windows() {
    let starts = [1, 2].map(|s| Timestamp::from_micros(s * 1_000_000));
    let calendar = crate::Calendar::new("second of the tests", starts).unwrap();
    let quota = Quota::per_calendar(100, calendar);
    let fixed = Policy::fixed_window_counter("p", quota).unwrap();
    assert_eq!(
        fixed.to_string(),
        "p: 100 units per calendar second of the tests, fixed_window_counter"
    );
    assert_eq!(fixed.share(1, 10).unwrap().quota(), quota.with_limit(10));
    assert_ne!(fixed, Policy::fixed_window_counter("p", Quota::per_second(100)).unwrap());
    assert!(!fixed.shares_state_with(&fixed.share(1, 10).unwrap()));
    let error = fixed.with_lease(Lease::default()).unwrap_err().to_string();
    assert!(error.starts_with("policy `p`: the windows of a calendar cannot be leased"), "{error}");
    for algorithm in &Algorithm::ALL[1..] {
        let error = Policy::new("p", quota, *algorithm).unwrap_err().to_string();
        assert!(error.contains("use fixed_window_counter, or a span"), "{error}");
    }
    let burst = Policy::fixed_window_counter("p", quota.burst(5)).unwrap_err();
    assert!(burst.to_string().contains("has no burst"), "{burst}");
}

#[test]
fn share_rounds_down_to_valid_limit() {
    let share = |limit, numerator, denominator| {
        let policy = Policy::token_bucket("p", Quota::per_day(limit)).unwrap();
        policy.share(numerator, denominator).unwrap().quota().limit()
    };
    assert_eq!(share(100, 1, 3), 33);
    assert_eq!(share(1, 1, 10), 1);
    // Half is 123 457, which does not build.
    assert_eq!(share(246_915, 1, 2), 123_456);
    assert!(share(214_655, 1, 2) <= 107_327);
}

#[test]
fn zero_denominator_is_an_error() {
    let penalty = Policy::penalty("p", Strikes::of_denials(1, Duration::from_secs(1))).unwrap();
    for policy in [Policy::token_bucket("p", Quota::per_day(100)).unwrap(), penalty] {
        let error = policy.share(1, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "policy `p`: a share of 1/0 has no meaning: choose a denominator of at least 1 [TG0102]"
        );
        assert_eq!(error.nearest_limit(), None);
    }
}
