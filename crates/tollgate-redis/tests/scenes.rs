//! Scenes that random traces meet too seldom, played with the script and the reference in
//! step.

mod support;

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use support::Server;
use support::pair::Pair;
use tollgate_core::{Algorithm, Policy, Quota, Resolution};

const EXACT: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
const THOUSANDTH: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth };

fn policy(limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    Policy::new("p", Quota::new(limit, Duration::from_micros(window)), algorithm).expect("builds")
}

/// A year from now, so that nothing expires by Redis' own clock meanwhile.
fn next_year() -> u64 {
    let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("past 1970");
    u64::try_from((real + Duration::from_secs(365 * 86_400)).as_micros()).expect("before 2255")
}

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
        let mut pair = Pair::new(&mut client, format!("log:{seed}"), next_year());
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
