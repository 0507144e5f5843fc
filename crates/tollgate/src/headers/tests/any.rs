//! The headers of any verdict.

use super::*;

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(ALLOW),
        Just(Outcome::WouldAllow),
        Just(Outcome::ExceedsCapacity),
        Just(Outcome::Undecided),
        any_span().prop_map(deny),
    ]
}

/// Spans across all magnitudes.
fn any_span() -> impl Strategy<Value = u64> {
    (0..64_u32, any::<u64>()).prop_map(|(bits, span)| span >> bits)
}

fn any_policy() -> impl Strategy<Value = (Policy, Decision)> {
    let window = (50..=34_560_000_000_000_u64, 0..40_u32);
    let window =
        window.prop_map(|(window, shift)| Duration::from_micros((window >> shift).max(50)));
    let units = || (1..=Policy::MAX_LIMIT, 0..40_u32).prop_map(|(n, shift)| (n >> shift).max(1));
    let policy = ("[ -~]{1,128}", units(), window, prop::option::of(units()), 0..6_usize);
    let policy =
        policy.prop_filter_map("no limit near builds", |(name, limit, window, burst, n)| {
            let refill = Refill::Interval;
            let algorithm = Algorithm::ALL.get(n).copied();
            let algorithm = algorithm.unwrap_or(Algorithm::TokenBucket { refill });
            let burst = burst.filter(|_| algorithm.name().ends_with("bucket"));
            let build = |limit| {
                let quota = Quota::new(limit, window);
                let quota = burst.map_or(quota, |burst| quota.burst(burst));
                Policy::new(&*name, quota, algorithm)
            };
            build(limit).or_else(|error| error.nearest_limit().map_or(Err(error), build)).ok()
        });
    let numbers = (any_outcome(), any_span(), any_span());
    (policy, numbers).prop_map(|(policy, (outcome, remaining, reset_after))| {
        let remaining = remaining.min(policy.capacity());
        let decision = decision(&policy, outcome, remaining, reset_after);
        (policy, decision)
    })
}

proptest! {
    #[test]
    fn headers_match_verdict_for_any_input(
        shown in prop::collection::vec(any_policy(), 1..4),
        jitter in 0..100_u64,
    ) {
        let plain = HeaderOptions::all();
        let mut headers = HeaderMap::new();
        write(&mut headers, plain, &shown);
        let decided: Vec<_> = shown.iter().filter(|it| it.1.outcome != Outcome::Undecided).collect();
        prop_assert_eq!(headers.contains_key(X_RATELIMIT_LIMIT), !decided.is_empty());

        let policies = parsed(&headers, &RATELIMIT_POLICY);
        let states = parsed(&headers, &RATELIMIT);
        prop_assert_eq!(policies.len(), decided.len());
        for (((policy, decision), quota), state) in decided.iter().zip(policies).zip(&states) {
            prop_assert_eq!(&quota.0, policy.name());
            prop_assert_eq!(&quota.1[0], &("q".to_owned(), policy.capacity()));
            prop_assert_eq!(&state.0, policy.name());
            prop_assert_eq!(&state.1[0], &("r".to_owned(), decision.remaining));
            let (key, t) = &state.1[1];
            prop_assert!(key == "t" && *t >= 1);
            if decision.retry_after().is_none() && *t < digits::MAX_INTEGER {
                let used = u128::from(decision.remaining) * u128::from(policy.window().get());
                let granted = u128::from(*t) * 1_000_000 * u128::from(policy.quota().limit());
                prop_assert!(used <= granted, "r={} in t={t}", decision.remaining);
            }
        }

        let waits = decided.iter().filter_map(|it| it.1.retry_after());
        let exceeds = decided.iter().any(|it| it.1.outcome == Outcome::ExceedsCapacity);
        let longest = waits.max().filter(|_| !exceeds);
        let seconds = headers.get(RETRY_AFTER).and_then(number);
        prop_assert_eq!(seconds.is_some(), longest.is_some());
        if let (Some(seconds), Some(longest)) = (seconds, longest) {
            prop_assert!(seconds >= 1 && u128::from(seconds) * 1_000_000 >= u128::from(longest.get()));
            let of_denials = decided.iter().zip(&states).filter(|(it, _)| it.1.denies());
            prop_assert_eq!(of_denials.map(|(_, state)| state.1[1].1).max(), Some(seconds));

            let mut jittered = HeaderMap::new();
            write(&mut jittered, plain.retry_jitter(Duration::from_secs(jitter)), &shown);
            let later = jittered.get(RETRY_AFTER).and_then(number).unwrap();
            prop_assert!((seconds..=seconds + jitter).contains(&later));
        }
    }
}
