//! Scenarios that random traces reach too rarely, run with the script and the reference in
//! lockstep.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, Kind, Micros, Policy, Quota, Settlement, Timestamp,
};
use tollgate_store_tests::reference::Reference;
use tollgate_store_tests::seeds;

use crate::support::pair::Pair;
use crate::support::{Server, modes};

const MODES: [Algorithm; 9] = modes(9_000);
const EXACT: Algorithm = MODES[1];
const THOUSANDTH: Algorithm = MODES[2];
const INTERVAL: Algorithm = MODES[5];

fn policy(limit: u64, window: u64, kind: impl Into<Kind>) -> Policy {
    Policy::new("p", Quota::new(limit, Duration::from_micros(window)), kind).expect("builds")
}

/// The year 2100: far ahead of Redis' own clock, so no key expires meanwhile.
const START: u64 = 4_102_444_800_000_000;

/// If a small quota has promised less room than a log holds, the core drops the oldest entries. The
/// script need not, and no answer shows the difference.
#[test]
fn small_limit_reads_full_log() {
    let server = Server::start();
    let mut client = server.connect();
    let logs = [(EXACT, 40), (EXACT, 300), (THOUSANDTH, 300), (EXACT, 2_000)];
    for (seed, (algorithm, limit)) in seeds(4).zip(logs) {
        let mut rng = Rng::with_seed(seed);
        let window = 1_000_000;
        let full = policy(limit, window, algorithm);
        let mut pair = Pair::new(&mut client, format!("log:{seed}"), START);
        // With a debt, the log holds up to twice its limit.
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

/// Old and new replicas take turns on the same key, like in a rolling deployment. The larger quota
/// alone would have admitted all that both admit, and no later.
#[test]
fn mixed_versions_respect_larger_limit() {
    const WINDOW: u64 = 20_000;
    let server = Server::start();
    let mut client = server.connect();
    let mut by_smaller = BTreeMap::new();
    let seeds = seeds(24);
    for (algorithm, seed) in
        MODES.into_iter().flat_map(|mode| seeds.clone().map(move |n| (mode, n)))
    {
        let mut rng = Rng::with_seed(seed);
        let limit = rng.u64(2..=40);
        let larger = policy(limit, WINDOW, algorithm);
        let longer = match algorithm {
            // A counter's windows have to nest, see `Rule::convert`.
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
            // The smaller version has fewer units, so it is asked more often, and for less.
            let old = rng.u8(..3) > 0;
            let asked = if old { &smaller } else { &larger };
            let max_cost = if rng.bool() { 2 } else { asked.capacity() };
            let cost = rng.u64(1..=max_cost);
            let (decision, _) = pair.charge(asked, cost);
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
            // When an interval starts depends on which requests were made, but not how often one
            // starts.
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

/// The clock steps back into the previous day, where the key is reset and charged again. The
/// receipt from the later day is not part of this charge, although it is dated after it.
#[test]
fn other_days_charge_is_not_refunded() {
    let server = Server::start();
    let mut client = server.connect();
    let day = tollgate_calendar::day("Europe/Berlin").expect("a zone");
    let policy = Policy::fixed_window_counter("p", Quota::per_calendar(9, day)).expect("builds");
    let midnight = day.period(Timestamp::from_micros(START)).end().as_micros();
    let mut pair = Pair::new(&mut client, "day", midnight + 1);
    let (_, later) = pair.charge(&policy, 5);
    pair.now = midnight - 2_000;
    // The key's time does not advance until the reset.
    let (decision, _) = pair.charge(&policy, 1);
    assert_eq!(decision.remaining, 3);
    pair.reset(&policy);
    let (_, earlier) = pair.charge(&policy, 4);
    pair.now += 1_000;
    let later = later.expect("a receipt");
    assert_eq!(pair.settle(&later, 0), Settlement::Returned { units: 0 });
    let earlier = earlier.expect("a receipt");
    assert_eq!(pair.settle(&earlier, 1), Settlement::Returned { units: 3 });
}

/// No instant is later than `Timestamp::MAX`: later instants are clamped to it.
#[test]
fn instants_clamp_at_end_of_time() {
    let server = Server::start();
    let mut client = server.connect();
    let end = Timestamp::MAX.as_micros();
    for (index, algorithm) in MODES.into_iter().enumerate() {
        for window in [50, 2_000, 1_000_000, 400 * 86_400_000_000] {
            let versions = [policy(5, window, algorithm), policy(3, 50.max(window * 2 / 3), EXACT)];
            for before in [1, 2, 40, 60, window / 2, window, window + 7, 2 * window] {
                let mut pair =
                    Pair::new(&mut client, format!("{index}:{window}:{before}"), end - before);
                let (_, receipt) = pair.charge(&versions[0], 2);
                let receipt = receipt.expect("a receipt");
                pair.charge(&versions[0], 3);
                pair.now += before / 3;
                pair.charge(&versions[0], 4);
                pair.settle(&receipt, [0, 1, 4, 50][before as usize % 4]);
                pair.charge(&versions[1], 1);
                pair.now = end - 1;
                pair.charge(&versions[0], 1);
                pair.charge(&versions[1], 1);
            }
        }
    }
}

/// With a debt as large as its capacity, a bucket of 2^52 lacks 2^53, and a cost on top exceeds
/// that.
#[test]
fn largest_debt_is_exact() {
    const WINDOW: u64 = 1_000_001;
    let server = Server::start();
    let mut client = server.connect();
    for (index, algorithm) in [MODES[4], MODES[6], MODES[7]].into_iter().enumerate() {
        // Three units of the 2^53 are refilled per microsecond, so the end of time is far away.
        let quota = Quota::new(3, Duration::from_micros(WINDOW)).burst((1 << 52) / WINDOW);
        let policy = Policy::new("p", quota, algorithm).expect("builds");
        let mut pair = Pair::new(&mut client, index.to_string(), START);
        let (_, receipt) = pair.charge(&policy, 1);
        pair.settle(&receipt.expect("a receipt"), u64::MAX);
        for step in 0..40 {
            pair.now += step % 3;
            let (decision, _) = pair.charge(&policy, policy.capacity() - step % 5);
            assert!(decision.retry_after().is_some(), "{algorithm:?}");
        }
    }
}

/// The clock steps back before a charge, and its key is reset. A receipt may then be for more units
/// than the queue holds, and these are not refunded.
#[test]
fn queue_refund_is_bounded() {
    let server = Server::start();
    let mut client = server.connect();
    let queue = policy(100, 50, MODES[7]);
    let mut pair = Pair::new(&mut client, "queue", START);
    let (_, receipt) = pair.charge(&queue, 5);
    pair.now -= 1;
    pair.reset(&queue);
    pair.charge(&queue, 1);
    pair.now += 1;
    pair.charge(&queue, 4);
    let settled = pair.settle(&receipt.expect("a receipt"), 0);
    assert_eq!(settled, Settlement::Returned { units: 0 });
    assert_eq!(pair.charge(&queue, 0).0.remaining, 96);
}

/// A receipt from before the reset is void, even in the following microsecond.
#[test]
fn reset_charges_are_not_refunded() {
    let server = Server::start();
    let mut client = server.connect();
    // The last mode would wait too long here.
    for (index, algorithm) in MODES.into_iter().take(8).enumerate() {
        let first = policy(10, 1 << 40, algorithm);
        let mut pair = Pair::new(&mut client, format!("reset:{index}"), START);
        let receipt = pair.charge(&first, 5).1.expect("a receipt");
        pair.reset(&first);
        pair.now += 1;
        let fresh = pair.charge(&first, 4).1.expect("a receipt");
        assert_eq!(pair.settle(&receipt, 0), Settlement::Returned { units: 0 }, "{algorithm:?}");
        assert_eq!(pair.settle(&fresh, 1), Settlement::Returned { units: 3 }, "{algorithm:?}");
    }
}

/// Only the start of a stored log is read, so a penalty's remains may follow.
#[test]
fn penalty_state_reads_as_log() {
    let server = Server::start();
    let mut client = server.connect();
    let block = Micros::new(1_000);
    let terms = Terms {
        block,
        factor: 1,
        max_block: block,
        forget_after: Micros::ZERO,
        counts_denials: false,
    };
    let penalty = policy(1_000, 1_000_000, Kind::Penalty(terms));
    let mut pair = Pair::new(&mut client, "penalty".to_owned(), START);
    let (_, receipt) = pair.charge(&penalty, 1);
    pair.now += 1;
    pair.settle(&receipt.expect("a receipt"), 1 + 500);
    pair.now += 1;
    for algorithm in [EXACT, THOUSANDTH] {
        pair.charge(&policy(10, 1_000_000, algorithm), 0);
    }
}

/// A refund at the end of a log leaves no unused memory.
#[test]
fn short_log_wastes_no_memory() {
    let server = Server::start();
    let mut client = server.connect();
    let log = policy(100, 1_000_000, EXACT);
    let mut pair = Pair::new(&mut client, "log", START);
    let mut receipts = Vec::new();
    for entries in 1..=4 {
        pair.now += 1;
        receipts.extend(pair.charge(&log, 2).1);
        assert_eq!(pair.stored(), 56 + 14 * entries);
    }
    for entries in (0..4).rev() {
        pair.settle(&receipts.pop().expect("four"), 0);
        assert_eq!(pair.stored(), if entries > 0 { 56 + 14 * entries } else { 0 });
    }
}

/// A long log has an eighth more room, so most charges write only a header, an entry and an expiry.
#[test]
fn long_log_is_written_in_place() {
    let server = Server::start();
    let mut client = server.connect();
    let log = policy(1_000, 1_000_000, EXACT);
    let mut pair = Pair::new(&mut client, "log", START);
    let charge = |pair: &mut Pair<'_>, count: u64| {
        for _ in 0..count {
            pair.now += 1;
            assert!(pair.charge(&log, 1).0.allows());
        }
    };
    charge(&mut pair, 400);
    let before = ["set", "setrange"].map(|name| pair.client.stats(name).0);
    charge(&mut pair, 100);
    let after = ["set", "setrange"].map(|name| pair.client.stats(name).0);
    let (whole, parts) = (after[0] - before[0], after[1] - before[1]);
    assert!((1..=3).contains(&whole), "{whole} times as a whole");
    assert_eq!(parts, 2 * (100 - whole));
}

/// Two documents promise its length.
#[test]
fn thousandth_log_length_matches_documentation() {
    const DOCUMENTS: [&str; 2] =
        [include_str!("../../../../docs/deployment.md"), include_str!("../../../../lua/README.md")];
    let server = Server::start();
    let mut client = server.connect();
    let log = policy(1_000_000, 1_000_000, THOUSANDTH);
    let mut pair = Pair::new(&mut client, "log", START);
    let mut longest = 0;
    // One entry per thousandth, until the entire log was rewritten several times.
    for _ in 0..3_500 {
        pair.now += 1_000;
        assert!(pair.charge(&log, 1).0.allows());
        longest = longest.max(pair.stored());
    }
    let promise = format!("{} {:03} bytes", longest / 1_000, longest % 1_000);
    for document in DOCUMENTS {
        assert!(document.contains(&promise), "{promise}");
    }
}

/// A document promises the sizes of all states except logs.
#[test]
fn state_sizes_match_documentation() {
    let server = Server::start();
    let mut client = server.connect();
    let rates = MODES.into_iter().filter(|mode| !matches!(mode, &EXACT | &THOUSANDTH));
    let sizes = rates.enumerate().map(|(number, mode)| {
        let mut pair = Pair::new(&mut client, format!("state:{number}"), START);
        assert!(pair.charge(&policy(10, 60_000_000, mode), 1).0.allows());
        pair.stored()
    });
    let sizes: Vec<_> = sizes.collect();
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    let promise = format!("of which {least} to {most} are state");
    assert!(include_str!("../../../../docs/deployment.md").contains(&promise), "{promise}");
}

/// Under a shorter window, a log without entries that count still remembers its last instant.
#[test]
fn empty_converted_log_remembers_time() {
    let server = Server::start();
    let mut client = server.connect();
    let (long, short) = (policy(5, 1_000, EXACT), policy(5, 50, EXACT));
    let mut pair = Pair::new(&mut client, "log", START);
    pair.now = START + 60;
    pair.charge(&long, 1);
    pair.now = START + 200;
    let receipt = pair.charge(&long, 1).1.expect("a receipt");
    pair.settle(&receipt, 0);
    pair.now = START + 20;
    let charged = pair.charge(&short, 1).1.expect("a receipt").charged;
    assert_eq!(charged.charged_at.as_micros(), START + 200);
}
