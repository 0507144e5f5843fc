use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tollgate_core::{LeakyMode, OnStoreError, Quota, Refill, Resolution, Timestamp};

use super::*;
use crate::scenario::START;
use crate::{Answer, Bounds, Replay, Request};

const MINUTE: Micros = Micros::new(60_000_000);

fn algorithms() -> [Algorithm; 7] {
    [
        Algorithm::SlidingWindowLog { resolution: Resolution::Auto },
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::SlidingWindowCounter,
        Algorithm::FixedWindowCounter,
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
        Algorithm::TokenBucket { refill: Refill::Interval },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
    ]
}

fn policy(quota: Quota, algorithm: Algorithm) -> Policy {
    Policy::new("client", quota, algorithm).unwrap()
}

fn alone(policy: &Policy, window: Micros, threat: &Threat) -> Worst {
    worst(&[Kind::of_policy(policy)], window, threat).unwrap()
}

/// The table in docs/choosing.md.
#[test]
fn algorithms_alone_are_proved() {
    let start = Instant::now();
    let found = algorithms().map(|algorithm| {
        let worst = alone(&policy(Quota::per_minute(100), algorithm), MINUTE, &Threat::default());
        assert!(worst.is_proved(), "{algorithm:?}: {worst:?}");
        worst.found
    });
    assert_eq!(found, [100, 200, 199, 200, 101, 200, 200]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// For a tiny quota, no schedule gets more requests through than the bound or the schedule that
/// the search finds.
#[test]
fn bounds_hold_for_all_schedules_of_tiny_quotas() {
    let mut checked = 0;
    for (limit, window) in [(1, 50), (2, 50)] {
        for algorithm in algorithms() {
            let policy = policy(Quota::new(limit, Duration::from_micros(window)), algorithm);
            let kind = Kind::of_policy(&policy);
            let passes = exhaustive(&kind, limit, window);
            for length in [window, 2 * window] {
                let worst = alone(&policy, Micros::new(length), &Threat::default());
                let span = if worst.is_closed { length } else { length - 1 };
                let most = passes.iter().map(|passes| densest(passes, span)).max().unwrap();
                assert!(
                    worst.bound.unwrap() >= most && worst.found >= most,
                    "{limit} {algorithm:?} in {length}: {most} {worst:?}"
                );
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 2 * 7 * 2);
}

fn densest(passes: &[u64], span: u64) -> u64 {
    let within = passes.iter().enumerate().map(|(index, first)| {
        passes[index..].iter().take_while(|at| **at <= first + span).count() as u64
    });
    within.max().unwrap_or_default()
}

/// When requests pass, for all schedules with up to `limit` requests at each of the instants at which
/// windows start and end, and halfway between.
fn exhaustive(kind: &Kind, limit: u64, window: u64) -> Vec<Vec<u64>> {
    let half = window / 2;
    let instants = [0, half, window - 1, window, window + half, 2 * window - 1, 2 * window];
    let choices = limit + 1;
    let schedule = |mut schedule: u64| {
        let bounds = Bounds { store_bytes: 1 << 20, clients: 1, ..Bounds::default() };
        let mut replay = Replay::within(bounds);
        let mut passes = Vec::new();
        for instant in instants {
            for _ in 0..schedule % choices {
                let at = START + Micros::new(instant);
                let mut request = Request::new(at, &kind.limits, kind.charges.clone());
                if let Answer::Allowed { wait } = replay.request(&mut request).unwrap() {
                    passes.push((at + wait).since(START).get());
                }
            }
            schedule /= choices;
        }
        passes.sort_unstable();
        passes
    };
    (0..choices.pow(instants.len() as u32)).map(schedule).collect()
}

fn threat(replicas: u32, is_shared: bool) -> Threat {
    let fleet =
        Fleet { replicas: NonZeroU32::new(replicas).unwrap(), is_shared, ..Fleet::default() };
    Threat { fleet, ..Threat::default() }
}

#[test]
fn outages_and_failovers_add_what_the_guarantees_state() {
    let log = policy(Quota::per_minute(100), algorithms()[0]);
    let second = Micros::new(1_000_000);
    let shared = threat(5, true);
    let lost = Threat { store_lost: Some(Micros::new(10_000_000)), ..shared };
    let half = Fleet { local_share: Some((1, 2)), ..shared.fleet };
    for (what, threat, policy, expected) in [
        ("one store", shared, log.clone(), 100),
        ("a store each", threat(5, false), log.clone(), 500),
        ("lost", lost, log.clone(), 200),
        ("lost, fixed shares", Threat { fleet: half, ..lost }, log.clone(), 350),
        ("failover", Threat { failover: true, ..shared }, log.clone(), 200),
        ("both", Threat { failover: true, ..lost }, log.clone(), 300),
        ("closed", lost, log.clone().with_on_store_error(OnStoreError::Closed), 100),
    ] {
        let worst = alone(&policy, MINUTE, &threat);
        assert_eq!((worst.found, worst.bound), (expected, Some(expected)), "{what}: {worst:?}");
    }
    let open = log.with_on_store_error(OnStoreError::Open);
    assert_eq!(alone(&open, second, &lost).bound, None);
}

#[test]
fn policies_bound_each_other() {
    let minute = policy(Quota::per_minute(100), algorithms()[0]);
    let login = Policy::sliding_window_log("login", Quota::per_minute(5)).unwrap();
    let kind = |name: &str, policies: &[&Policy]| {
        let limits = policies.iter().map(|policy| Limit::new((*policy).clone()));
        let limits = Arc::new(Limits::new(limits));
        let charges = Charges::of_each(&limits, &Key::GLOBAL, Cost::ONE);
        Kind { name: name.to_owned(), limits, charges }
    };
    let any = kind("GET /", &[&minute]);
    let both = [kind("POST /login", &[&minute, &login]), any.clone()];
    let all = worst(&both, MINUTE, &Threat::default()).unwrap();
    assert_eq!((all.found, all.bound), (100, Some(100)));
    let apart = [kind("POST /login", &[&login]), any];
    let all = worst(&apart, MINUTE, &Threat::default()).unwrap();
    assert_eq!((all.found, all.bound), (105, Some(105)));
    let free = [kind("GET /free", &[]), apart[0].clone()];
    assert_eq!(worst(&free, MINUTE, &Threat::default()).unwrap().bound, None);
}

#[test]
fn schedule_alone_gets_the_number_through() {
    for algorithm in algorithms() {
        let policy = policy(Quota::per_minute(100), algorithm);
        let (kind, worst) = (Kind::of_policy(&policy), alone(&policy, MINUTE, &Threat::default()));
        // The schedule's last request arrives as a fixed window starts.
        let origin = Timestamp::from_micros(START.as_micros() - 1);
        let mut replay = Replay::new();
        let mut passed = 0;
        for Burst { after, requests, times, every, .. } in worst.schedule {
            for time in 0..times {
                let at = origin + after + Micros::new(every.get() * time);
                for _ in 0..requests {
                    let mut request = Request::new(at, &kind.limits, kind.charges.clone());
                    let answer = replay.request(&mut request).unwrap();
                    passed += u64::from(matches!(answer, Answer::Allowed { .. }));
                }
            }
        }
        assert_eq!(passed, worst.found, "{algorithm:?}");
    }
}
