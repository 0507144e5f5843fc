//! The script reads and writes no more than necessary, and counts in integers.

mod foreign;

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tollgate_core::{Algorithm, Cost, Micros, Outcome, Policy, Quota, Timestamp, Verdict};
use tollgate_redis::protocol::{Ask, Batch, Fault, KeyedCharge, ScriptAnswer};
use tollgate_store_tests::{seed, seeds};

use crate::support::{ScriptClient, Server, Value, modes};

const MODES: [Algorithm; 10] = {
    let [a, b, c, d, e, f, g, h, i] = modes(400);
    [a, b, c, d, e, f, g, h, i, Algorithm::ConcurrentRequests]
};

fn policy(name: &str, limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    Policy::new(name, Quota::new(limit, Duration::from_micros(window)), algorithm).expect("builds")
}

fn charge<'a>(key: &'a str, policy: &'a Policy, cost: u64) -> KeyedCharge<'a> {
    KeyedCharge::new(key.as_bytes(), policy, Cost::new(cost))
}

/// A year from now, so no key expires meanwhile by Redis' own clock.
fn next_year() -> u64 {
    let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("past 1970");
    u64::try_from((real + Duration::from_secs(365 * 86_400)).as_micros()).expect("before 2255")
}

fn decide(client: &mut ScriptClient, charges: &[KeyedCharge<'_>], now: u64) -> Verdict {
    let mut batch = Batch::new(1);
    batch.decide(charges).expect("room");
    match client.call(&batch, Some(Timestamp::from_micros(now))).rows.remove(0) {
        ScriptAnswer::Verdict(verdict, _) => verdict,
        other => panic!("{other:?}"),
    }
}

/// Fills a key in several steps, so a log has several entries.
fn fill(client: &mut ScriptClient, key: &str, policy: &Policy, now: u64) {
    for step in 0.. {
        if !decide(client, &[charge(key, policy, 1)], now + step).is_admitted() {
            return;
        }
    }
}

fn held(client: &mut ScriptClient, key: &str) -> [Value; 2] {
    [client.run(&[b"GET", key.as_bytes()]), client.expiry(key.as_bytes())]
}

fn writes(client: &mut ScriptClient) -> u64 {
    ["set", "setrange", "append", "del", "pexpireat"].map(|name| client.stats(name).0).iter().sum()
}

#[test]
fn denial_does_not_write() {
    let server = Server::start();
    let mut client = server.connect();
    let _replica = server.replica();
    let start = next_year();
    for (algorithm, limit) in MODES.into_iter().flat_map(|mode| [(mode, 5), (mode, 300)]) {
        let full = policy("full", limit, 1_000_000_000, algorithm);
        let free = policy("free", limit, 1_000_000_000, MODES[0]);
        let (full_key, free_key) =
            (format!("{algorithm:?}:{limit}"), format!("free:{algorithm:?}"));
        fill(&mut client, &full_key, &full, start);
        decide(&mut client, &[charge(&free_key, &free, 1)], start);
        let keys = [full_key.as_str(), &free_key];
        let before = keys.map(|key| held(&mut client, key));
        let count = (writes(&mut client), client.replicated());
        let later = start + limit + 1;
        for cost in [1, limit / 2, limit, limit + 1] {
            let denied = [charge(&full_key, &full, cost), charge(&free_key, &free, 1)];
            assert!(!decide(&mut client, &denied[..1], later).is_admitted(), "{algorithm:?}");
            let verdict = decide(&mut client, &denied, later);
            assert_eq!(verdict.decisions()[1].outcome, Outcome::WouldAllow, "{algorithm:?}");
            let mut shadow = denied[0];
            shadow.charge.enforce = false;
            assert!(decide(&mut client, &[shadow], later).is_admitted(), "{algorithm:?}");
        }
        for key in keys {
            assert!(decide(&mut client, &[charge(key, &full, 0)], later).is_admitted());
        }
        assert!(decide(&mut client, &[charge("never", &full, 0)], later).is_admitted());
        assert_eq!(keys.map(|key| held(&mut client, key)), before, "{algorithm:?}");
        assert_eq!((writes(&mut client), client.replicated()), count, "{algorithm:?}");
        assert_eq!(client.run(&[b"EXISTS", b"never"]), Value::Number(0));
        // An admitted request is written, and sent to the replica.
        assert!(decide(&mut client, &[charge(&free_key, &free, 1)], later).is_admitted());
        assert!(writes(&mut client) > count.0 && client.replicated() > count.1, "{algorithm:?}");
    }
}

#[test]
fn expired_key_deletion_is_invisible() {
    let server = Server::start();
    let mut client = server.connect();
    let seeds = seeds(3);
    for (algorithm, seed) in
        MODES.into_iter().flat_map(|mode| seeds.clone().map(move |n| (mode, n)))
    {
        let mut rng = Rng::with_seed(seed);
        let versions = [(7, 2_000_000), (3, 5_000_000)]
            .map(|(limit, window)| policy("p", limit, window, algorithm));
        let [kept, dropped] =
            ["kept", "dropped"].map(|name| format!("{name}:{algorithm:?}:{seed}"));
        let (mut now, mut dropped_times) = (next_year(), 0);
        for _ in 0..400 {
            now += [0, rng.u64(0..900_000), rng.u64(0..9_000_000)][rng.usize(..3)];
            if let [_, Value::Number(expiry @ 1..)] = held(&mut client, &dropped)
                && expiry as u64 * 1_000 <= now
            {
                client.run(&[b"DEL", dropped.as_bytes()]);
                dropped_times += 1;
            }
            let version = &versions[usize::from(rng.u8(..6) == 0)];
            let cost = rng.u64(0..5);
            let verdicts = [&kept, &dropped]
                .map(|key| decide(&mut client, &[charge(key, version, cost)], now));
            assert_eq!(verdicts[0], verdicts[1], "{algorithm:?} {seed}");
        }
        assert!(dropped_times > 20, "{algorithm:?}: {dropped_times}");
    }
}

/// The log alone is short, but with the blocks before it, it is longer than the first read.
#[test]
fn log_behind_blocks_is_read_completely() {
    let server = Server::start();
    let mut client = server.connect();
    let policy = policy("p", 1_000, 1_000_000_000, MODES[1]);
    let now = next_year();
    for step in 0..128 {
        assert!(decide(&mut client, &[charge("k", &policy, 1)], now + step).is_admitted());
    }
    for id in 0..64 {
        let mut batch = Batch::new(1);
        let ask = Ask { tag: id as u32, units: 2, ttl: Micros::new(1_000_000) };
        batch.lease(b"k", &policy, &[], ask).expect("room");
        let now = Timestamp::from_micros(now + 200 + id);
        let ScriptAnswer::Leased(granted) = client.call(&batch, Some(now)).rows.remove(0) else {
            panic!()
        };
        assert_eq!((granted.units, granted.remaining), (2, 1_000 - 128 - 2 * (id + 1)));
    }
    let verdict = decide(&mut client, &[charge("k", &policy, 700)], now + 300);
    assert_eq!(verdict.decisions()[0].remaining, 1_000 - 128 - 128 - 700);
}

/// Otherwise the cost of a decision would grow with the log, to 3 ms at 100 000 entries.
#[test]
fn decision_reads_few_log_entries() {
    let server = Server::start();
    let mut client = server.connect();
    let bucket = policy("bucket", 10, 1_000_000, MODES[4]);
    let now = next_year();
    for mode in [MODES[1], MODES[2], MODES[9]] {
        let log = policy("log", 1_000, 1_000_000_000, mode);
        fill(&mut client, "log", &log, now);
        client.run(&[b"CONFIG", b"RESETSTAT"]);
        // Enough keys for the script to read them together.
        let charges =
            [charge("log", &log, 1), charge("one", &bucket, 1), charge("two", &bucket, 1)];
        for charges in [&charges[..1], &charges] {
            assert!(!decide(&mut client, charges, now + 2_000).is_admitted());
        }
        assert_eq!([client.stats("get").0, client.stats("mget").0], [0, 1], "{mode:?}");
        client.run(&[b"DEL", b"log"]);
    }
}

#[test]
fn script_uses_redis_time() {
    let server = Server::start();
    let mut client = server.connect();
    let mut batch = Batch::new(9);
    batch.reset(b"k").expect("room");
    batch.set_deadline(Some(Timestamp::from_micros(5)));
    let time = |client: &mut ScriptClient| match client.run(&[b"TIME"]) {
        Value::List(parts) => {
            let number = |part: &Value| match part {
                Value::Text(text) => {
                    std::str::from_utf8(text).expect("ASCII").parse::<u64>().expect("a number")
                }
                other => panic!("{other:?}"),
            };
            number(&parts[0]) * 1_000_000 + number(&parts[1])
        }
        other => panic!("{other:?}"),
    };
    let before = time(&mut client);
    let reply = client.call(&batch, None);
    let after = time(&mut client);
    assert!((before..=after).contains(&reply.now.as_micros()));
    assert_eq!(reply.rows, [ScriptAnswer::Stale]);
}

#[test]
fn call_may_have_thousands_of_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let policy = policy("p", 2, 1_000_000_000, MODES[0]);
    client.run(&[b"LPUSH", b"k:1500", b"x"]);
    let names: Vec<_> = (0..5_000).map(|number| format!("k:{number}")).collect();
    let mut batch = Batch::new(1);
    for name in &names {
        batch.decide(&[charge(name, &policy, 1)]).expect("room");
    }
    for remaining in [1, 0] {
        let reply = client.call(
            &batch,
            Some(Timestamp::from_micros(next_year() / 1_000_000_000 * 1_000_000_000)),
        );
        for (number, row) in reply.rows.iter().enumerate() {
            match row {
                ScriptAnswer::Verdict(verdict, _) => {
                    assert_eq!(verdict.decisions()[0].remaining, remaining)
                }
                ScriptAnswer::Fault { fault: Fault::WrongType, key: 1_500 } => {
                    assert_eq!(number, 1_500)
                }
                other => panic!("{number}: {other:?}"),
            }
        }
    }
}

#[test]
fn lua_divides_products_exactly() {
    const NUMBER: &str = include_str!("../../../lua/number.lua");
    let server = Server::start();
    let mut client = server.connect();
    let script = format!(
        "local number = (function() {NUMBER} end)() local found = {{}}
        for at = 1, #ARGV, 3 do
            local a, b, d = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
            found[#found + 1] = string.format('%.0f', number.mul_div_floor(a, b, d))
            found[#found + 1] = string.format('%.0f', number.mul_div_ceil(a, b, d))
        end
        return table.concat(found, ' ')"
    );
    let mut rng = Rng::with_seed(seed());
    let most = |bits: u32| (1_u64 << bits) - 1;
    let mut cases = vec![
        [most(53), most(45), most(51)],
        [most(53), most(51), most(51) + 1],
        [most(51), most(53), most(51)],
        [1 << 53, 1 << 45, 1 << 45],
        [1 << 26, 1 << 27, 3],
        [most(53), 1, 1],
        [0, 5, 7],
    ];
    for _ in 0..20_000 {
        let mut number = |bits: u32| rng.u64(..) >> (64 - rng.u32(1..=bits));
        cases.push([number(53), number(53), number(51).max(1)]);
    }
    for cases in cases.chunks(1_000) {
        let words: Vec<_> = cases.iter().flatten().map(u64::to_string).collect();
        let mut command: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"0"];
        command.extend(words.iter().map(String::as_bytes));
        client.say(&command);
        let Value::Text(found) = client.hear() else { panic!("no answer") };
        let found = String::from_utf8(found).expect("ASCII");
        let found: Vec<u128> = found.split(' ').map(|it| it.parse().expect("a number")).collect();
        assert_eq!(found.len(), 2 * cases.len());
        for (case, found) in cases.iter().zip(found.chunks(2)) {
            let [a, b, divisor] = case.map(u128::from);
            for (found, expected) in found.iter().zip([a * b / divisor, (a * b).div_ceil(divisor)])
            {
                // Above 2^53 it is enough to be above 2^53.
                let same = *found == expected || (expected > 1 << 53 && *found >= 1 << 53);
                assert!(same, "{a} · {b} / {divisor} is {expected}, not {found}");
            }
        }
    }
}
