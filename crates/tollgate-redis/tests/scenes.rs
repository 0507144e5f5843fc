//! Scenes that random traces meet too seldom, played with the script and the reference in
//! step.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use support::Server;
use support::pair::Pair;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, LeakyMode, Micros, Policy, Quota, Refill, Resolution, Timestamp,
};
use tollgate_store_tests::reference::Reference;

const MODES: [Algorithm; 9] = [
    Algorithm::FixedWindowCounter,
    EXACT,
    THOUSANDTH,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket { refill: Refill::Greedy },
    INTERVAL,
    Algorithm::LeakyBucket { mode: LeakyMode::Meter },
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(Micros::new(9_000)) } },
];
const INTERVAL: Algorithm = Algorithm::TokenBucket { refill: Refill::Interval };
const EXACT: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
const THOUSANDTH: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth };

fn policy(limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    Policy::new("p", Quota::new(limit, Duration::from_micros(window)), algorithm).expect("builds")
}

/// The year 2100: far ahead of Redis' own clock, so that nothing expires meanwhile.
const START: u64 = 4_102_444_800_000_000;

/// The core drops the oldest entries of a log that is more than a small quota has been
/// promised room for; the script need not. No answer tells.
#[test]
fn a_full_log_may_be_read_under_a_small_limit() {
    let server = Server::start();
    let mut client = server.connect();
    for (seed, (algorithm, limit)) in
        [(EXACT, 40), (EXACT, 300), (THOUSANDTH, 300), (EXACT, 2_000)].into_iter().enumerate()
    {
        let mut rng = Rng::with_seed(seed as u64);
        let window = 1_000_000;
        let full = policy(limit, window, algorithm);
        let mut pair = Pair::new(&mut client, format!("log:{seed}"), START);
        // A debt, so that the log holds up to twice its limit.
        let (_, receipt) = pair.charge(&full, 1);
        pair.now += 1_000;
        pair.settle(&receipt.expect("a receipt"), 1 + limit / 2);
        while pair.charge(&full, rng.u64(1..=2)).0.allows() {
            pair.now += rng.u64(1..window / limit);
        }
        for _ in 0..60 {
            pair.now += rng.u64(0..window / 40);
            let small = [(1, window), (3, window), (3, 50), (7, window / 2), (20, 2 * window)]
                [rng.usize(..5)];
            let small = policy(small.0, small.1, [EXACT, THOUSANDTH][rng.usize(..2)]);
            for cost in 0..=small.capacity() + 1 {
                pair.charge(&small, cost);
            }
            if rng.bool() {
                pair.charge(&full, 1);
            }
        }
    }
}

/// Old and new replicas in turn on one key, as in a rolling deploy: what both let pass, the
/// larger quota alone would have let pass, and no later.
#[test]
fn two_versions_side_by_side_admit_no_more_than_the_larger() {
    const WINDOW: u64 = 20_000;
    let server = Server::start();
    let mut client = server.connect();
    let mut by_smaller = BTreeMap::new();
    for (algorithm, seed) in MODES.into_iter().flat_map(|mode| (0..12).map(move |n| (mode, n))) {
        let mut rng = Rng::with_seed(seed);
        let limit = rng.u64(2..=40);
        let larger = policy(limit, WINDOW, algorithm);
        let longer = match algorithm {
            // The windows of a counter have to nest, see `Rule::convert`.
            Algorithm::FixedWindowCounter | Algorithm::SlidingWindowCounter => {
                WINDOW * rng.u64(1..=2)
            }
            _ => WINDOW + rng.u64(0..=WINDOW),
        };
        let smaller = policy(rng.u64(1..=limit), longer, algorithm);
        let key = format!("{algorithm:?}:{seed}");
        let mut pair = Pair::new(&mut client, &key, START);
        let (mut alone, mut admitted) = (Reference::default(), Vec::new());
        for _ in 0..250 {
            pair.now += [0, rng.u64(0..900), rng.u64(0..WINDOW / 2)][rng.usize(..3)];
            let old = rng.bool();
            let dearest = if rng.bool() { 2 } else { limit };
            let cost = rng.u64(1..=dearest);
            let (decision, _) = pair.charge(if old { &smaller } else { &larger }, cost);
            if decision.denies() {
                continue;
            }
            *by_smaller.entry(format!("{algorithm:?}")).or_insert(0) += u32::from(old);
            admitted.push((pair.now, cost));
            if algorithm != INTERVAL {
                let charge = Charge::new(&larger, &Key::GLOBAL, Cost::new(cost));
                let verdict = alone.decide(&[charge], Timestamp::from_micros(pair.now));
                assert!(verdict.is_admitted(), "{key}: {admitted:?}");
                assert!(verdict.delay() <= decision.delay(), "{key}: {admitted:?}");
            }
        }
        if algorithm == INTERVAL {
            // When an interval begins depends on who was asked, but not how often one does.
            let (limit, burst) = (larger.quota().limit(), larger.capacity());
            for (from, (start, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (end, cost) in &admitted[from..] {
                    sum += cost;
                    let most = burst + limit * ((end - start) / WINDOW + 1);
                    assert!(sum <= most, "{key}: {start} to {end} of {admitted:?}");
                }
            }
        }
        assert!(admitted.len() > 10, "{key}: {}", admitted.len());
    }
    assert!(by_smaller.values().all(|&count| count > 100), "{by_smaller:?}");
}
