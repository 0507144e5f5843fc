//! The script leaves foreign keys alone, refuses bad arguments, and counts in integers.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Cost, LeakyMode, Micros, Outcome, Policy, Quota, ReceiptId, Refill, Resolution,
    Settlement, Source, Timestamp, Verdict,
};
use tollgate_redis::protocol::{Ask, Batch, Fault, Line, Row};

use crate::support::{Client, Server, Value};

const MODES: [Algorithm; 10] = [
    Algorithm::FixedWindowCounter,
    Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
    Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth },
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket { refill: Refill::Greedy },
    Algorithm::TokenBucket { refill: Refill::Interval },
    Algorithm::LeakyBucket { mode: LeakyMode::Meter },
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(Micros::new(400)) } },
    Algorithm::ConcurrentRequests,
];

fn policy(name: &str, limit: u64, window: u64, algorithm: Algorithm) -> Policy {
    Policy::new(name, Quota::new(limit, Duration::from_micros(window)), algorithm).expect("builds")
}

fn line<'a>(key: &'a str, policy: &'a Policy, cost: u64) -> Line<'a> {
    Line { key: key.as_bytes(), policy, cost: Cost::new(cost), enforce: true, dry: false }
}

/// A year from now, so that nothing expires by Redis' own clock meanwhile.
fn next_year() -> u64 {
    let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("past 1970");
    u64::try_from((real + Duration::from_secs(365 * 86_400)).as_micros()).expect("before 2255")
}

fn decide(client: &mut Client, lines: &[Line<'_>], now: u64) -> Verdict {
    let mut batch = Batch::new(1);
    batch.decide(lines).expect("room");
    match client.call(&batch, Some(Timestamp::from_micros(now))).rows.remove(0) {
        Row::Verdict(verdict, _) => verdict,
        other => panic!("{other:?}"),
    }
}

/// Fills a key in several steps, so that a log has several entries.
fn fill(client: &mut Client, key: &str, policy: &Policy, now: u64) {
    for step in 0.. {
        if !decide(client, &[line(key, policy, 1)], now + step).is_admitted() {
            return;
        }
    }
}

fn held(client: &mut Client, key: &str) -> [Value; 2] {
    [client.run(&[b"GET", key.as_bytes()]), client.expiry(key.as_bytes())]
}

fn writes(client: &mut Client) -> u64 {
    ["set", "setrange", "append", "del", "pexpireat"].map(|name| client.stats(name).0).iter().sum()
}

#[test]
fn a_denial_writes_nothing() {
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
        decide(&mut client, &[line(&free_key, &free, 1)], start);
        let keys = [full_key.as_str(), &free_key];
        let before = keys.map(|key| held(&mut client, key));
        let count = (writes(&mut client), client.replicated());
        let later = start + limit + 1;
        for cost in [1, limit / 2, limit, limit + 1] {
            let denied = [line(&full_key, &full, cost), line(&free_key, &free, 1)];
            assert!(!decide(&mut client, &denied[..1], later).is_admitted(), "{algorithm:?}");
            let verdict = decide(&mut client, &denied, later);
            assert_eq!(verdict.decisions()[1].outcome, Outcome::WouldAllow, "{algorithm:?}");
            let mut shadow = denied[0];
            shadow.enforce = false;
            assert!(decide(&mut client, &[shadow], later).is_admitted(), "{algorithm:?}");
        }
        for key in keys {
            assert!(decide(&mut client, &[line(key, &full, 0)], later).is_admitted());
        }
        assert!(decide(&mut client, &[line("never", &full, 0)], later).is_admitted());
        assert_eq!(keys.map(|key| held(&mut client, key)), before, "{algorithm:?}");
        assert_eq!((writes(&mut client), client.replicated()), count, "{algorithm:?}");
        assert_eq!(client.run(&[b"EXISTS", b"never"]), Value::Number(0));
        // An admitted request is written, and told to the replica.
        assert!(decide(&mut client, &[line(&free_key, &free, 1)], later).is_admitted());
        assert!(writes(&mut client) > count.0 && client.replicated() > count.1, "{algorithm:?}");
    }
}

#[test]
fn a_key_may_go_when_it_expires_and_no_answer_tells() {
    let server = Server::start();
    let mut client = server.connect();
    for (algorithm, seed) in MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 2), (mode, 3)]) {
        let mut rng = Rng::with_seed(seed);
        let versions =
            [(7, 2_000), (3, 5_000)].map(|(limit, window)| policy("p", limit, window, algorithm));
        let [kept, dropped] =
            ["kept", "dropped"].map(|name| format!("{name}:{algorithm:?}:{seed}"));
        let (mut now, mut dropped_times) = (next_year(), 0);
        for _ in 0..400 {
            now += [0, rng.u64(0..900), rng.u64(0..9_000)][rng.usize(..3)];
            if let [_, Value::Number(expiry @ 1..)] = held(&mut client, &dropped)
                && expiry as u64 * 1_000 <= now
            {
                client.run(&[b"DEL", dropped.as_bytes()]);
                dropped_times += 1;
            }
            let version = &versions[usize::from(rng.u8(..6) == 0)];
            let cost = rng.u64(0..5);
            let verdicts =
                [&kept, &dropped].map(|key| decide(&mut client, &[line(key, version, cost)], now));
            assert_eq!(verdicts[0], verdicts[1], "{algorithm:?} {seed}");
        }
        assert!(dropped_times > 20, "{algorithm:?}: {dropped_times}");
    }
}

/// Values that are not states, each under its key.
fn foreign(client: &mut Client) -> Vec<(String, Fault)> {
    let mut all = Vec::new();
    for command in
        ["LPUSH list x", "SADD set x", "HSET hash f x", "ZADD zset 1 x", "XADD stream 1-1 f x"]
    {
        let words: Vec<_> = command.split(' ').map(str::as_bytes).collect();
        client.run(&words);
        all.push((command.split(' ').nth(1).expect("a key").to_owned(), Fault::WrongType));
    }
    // A good header of a fixed window counter and of a log: 9 units in 1000 µs.
    let fixed = [1, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 3, 232];
    let log = [1, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 3, 232];
    let mut bucket = [1, 5, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 9].to_vec();
    bucket.extend([0x1f; 21]);
    // One unit a second: the most that can be counted, and a unit more.
    let front = [1, 5, 0, 0, 0, 0, 1, 0, 0, 0, 15, 66, 64];
    let of = |capacity: u64| [&front[..], &capacity.to_be_bytes()[3..], &[0; 21]].concat();
    let (largest, beyond) = (of((1 << 52) / 1_000_000), of((1 << 52) / 1_000_000 + 1));
    client.run(&[b"SET", b"largest", &largest]);
    let mut log_of_nothing = [&log[..], &[0; 43]].concat();
    log_of_nothing[23] = 2;
    let zero_window = [&[1, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0][..], &[1; 20]].concat();
    let strings: [(&str, Vec<u8>); 11] = [
        ("garbage", b"some other program's value".to_vec()),
        ("number", b"17".to_vec()),
        ("next version", [&[2], &fixed[1..], &[0; 20]].concat()),
        ("no such code", [&[1, 10], &fixed[2..], &[0; 20]].concat()),
        ("half", fixed.to_vec()),
        ("no state", [&fixed[..], &[0; 7]].concat()),
        ("too long", [&fixed[..], &[0; 21]].concat()),
        ("more missing than there can be", bucket),
        ("log of more entries than it has", log_of_nothing),
        ("no window", zero_window),
        ("bucket beyond what can be counted", beyond),
    ];
    for (name, value) in strings.into_iter().chain(badly_leased(&fixed)) {
        client.run(&[b"SET", name.as_bytes(), &value]);
        all.push((name.to_owned(), Fault::Unreadable));
    }
    all
}

/// States with blocks before them that cannot be any.
fn badly_leased(header: &[u8]) -> [(&'static str, Vec<u8>); 7] {
    let hold = |units: u8, last: u8| {
        [&[7; 8][..], &[0, 0, 0, 0, units], &[0, 0, 0, 0, 0, 0, last]].concat()
    };
    let value = |count: u8, holds: &[Vec<u8>], state: usize| {
        let front = [&[1, 65], &header[2..], &[0; 7], &[count]].concat();
        [front, holds.concat(), vec![0; state]].concat()
    };
    [
        ("no blocks", value(0, &[], 13)),
        ("more blocks than there can be", value(65, &vec![hold(1, 9); 65], 13)),
        ("fewer blocks than it says", value(2, &[hold(1, 9)], 13)),
        ("a block of nothing", value(1, &[hold(0, 9)], 13)),
        ("blocks that do not end in order", value(2, &[hold(1, 9), hold(1, 8)], 13)),
        ("blocks and half a state", value(1, &[hold(1, 9)], 6)),
        ("blocks and nothing", value(1, &[hold(1, 9)], 0)),
    ]
}

/// A log that is short, but not with what stands before it, is longer than what is read first.
#[test]
fn a_log_behind_many_blocks_is_read_to_its_end() {
    let server = Server::start();
    let mut client = server.connect();
    let policy = policy("p", 1_000, 1_000_000_000, MODES[1]);
    let now = next_year();
    for step in 0..128 {
        assert!(decide(&mut client, &[line("k", &policy, 1)], now + step).is_admitted());
    }
    for id in 0..64 {
        let mut batch = Batch::new(1);
        let ask = Ask { tag: id as u32, units: 2, ttl: Micros::new(1_000_000) };
        batch.lease(b"k", &policy, &[], ask).expect("room");
        let now = Timestamp::from_micros(now + 200 + id);
        let Row::Leased(granted) = client.call(&batch, Some(now)).rows.remove(0) else { panic!() };
        assert_eq!((granted.units, granted.remaining), (2, 1_000 - 128 - 2 * (id + 1)));
    }
    let verdict = decide(&mut client, &[line("k", &policy, 700)], now + 300);
    assert_eq!(verdict.decisions()[0].remaining, 1_000 - 128 - 128 - 700);
}

/// Without this a decision costs as much as the log is long, 3 ms at 100 000 entries.
#[test]
fn a_decision_reads_a_few_entries_of_a_log_however_long_it_is() {
    let server = Server::start();
    let mut client = server.connect();
    let bucket = policy("bucket", 10, 1_000_000, MODES[4]);
    let now = next_year();
    for mode in [MODES[1], MODES[2], MODES[9]] {
        let log = policy("log", 1_000, 1_000_000_000, mode);
        fill(&mut client, "log", &log, now);
        client.run(&[b"CONFIG", b"RESETSTAT"]);
        // Enough keys for one read of them all.
        let lines = [line("log", &log, 1), line("one", &bucket, 1), line("two", &bucket, 1)];
        for lines in [&lines[..1], &lines] {
            assert!(!decide(&mut client, lines, now + 2_000).is_admitted());
        }
        assert_eq!([client.stats("get").0, client.stats("mget").0], [0, 1], "{mode:?}");
        client.run(&[b"DEL", b"log"]);
    }
}

#[test]
fn a_foreign_value_fails_only_the_requests_that_name_it() {
    let server = Server::start();
    let mut client = server.connect();
    let foreign = foreign(&mut client);
    let dump = |client: &mut Client| -> Vec<Value> {
        foreign.iter().map(|(key, _)| client.run(&[b"DUMP", key.as_bytes()])).collect()
    };
    let before = dump(&mut client);
    let now = next_year();
    for algorithm in MODES {
        let limit = if algorithm == Algorithm::ConcurrentRequests { 10_000 } else { 100_000 };
        let policy = policy("p", limit, 1_000_000, algorithm);
        let good = format!("good:{algorithm:?}");
        let mut batch = Batch::new(3);
        for (key, _) in &foreign {
            batch.decide(&[line(&good, &policy, 1)]).expect("room");
            batch.decide(&[line(key, &policy, 1)]).expect("room");
            batch.decide(&[line(&good, &policy, 1), line(key, &policy, 1)]).expect("room");
            batch.reset(key.as_bytes()).expect("room");
        }
        let reply = client.call(&batch, Some(Timestamp::from_micros(now)));
        let keys: Vec<_> = batch.keys().map(<[u8]>::to_vec).collect();
        for (index, (key, fault)) in foreign.iter().enumerate() {
            let rows = &reply.rows[4 * index..][..4];
            let Row::Verdict(verdict, _) = &rows[0] else { panic!("{rows:?}") };
            // The request that named both keys took nothing of the good one.
            assert_eq!(verdict.decisions()[0].remaining, limit - 1 - index as u64, "{algorithm:?}");
            for row in &rows[1..] {
                let Row::Fault { fault: found, key: at } = row else { panic!("{key}: {row:?}") };
                assert_eq!((found, &keys[*at][..]), (fault, key.as_bytes()), "{algorithm:?}");
            }
        }
    }
    assert_eq!(dump(&mut client), before);
    // The last of them differs from this by one unit.
    let policy = policy("p", 100_000, 1_000_000, MODES[4]);
    assert!(decide(&mut client, &[line("largest", &policy, 1)], now).is_admitted());
}

#[test]
fn a_receipt_is_not_used_up_by_a_value_that_cannot_be_read() {
    let server = Server::start();
    let mut client = server.connect();
    let (policy, now) = (policy("p", 10, 1_000_000_000, MODES[0]), next_year());
    let verdict = decide(&mut client, &[line("k", &policy, 4)], now);
    let charges = [tollgate_core::Charge::new(&policy, &tollgate_core::Key::GLOBAL, Cost::new(4))];
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().expect("a receipt");
    let settle = |client: &mut Client, actual| {
        let mut batch = Batch::new(1);
        batch.settle(b"k", b"r", &receipt, Cost::new(actual)).expect("room");
        client.call(&batch, Some(Timestamp::from_micros(now))).rows.remove(0)
    };
    let state = client.run(&[b"GET", b"k"]);
    client.run(&[b"SET", b"k", b"not ours"]);
    assert_eq!(settle(&mut client, 1), Row::Fault { fault: Fault::Unreadable, key: 0 });
    let Value::Text(state) = state else { panic!("{state:?}") };
    client.run(&[b"SET", b"k", &state]);
    client.run(&[b"HSET", b"r", b"f", b"v"]);
    assert_eq!(settle(&mut client, 1), Row::Fault { fault: Fault::WrongType, key: 1 });
    client.run(&[b"DEL", b"r"]);
    assert_eq!(settle(&mut client, 1), Row::Settlement(Settlement::Returned { units: 3 }));
    // From another process as well, and for as long as a receipt lives.
    let again = settle(&mut server.connect(), 0);
    assert_eq!(again, Row::Settlement(Settlement::Repeated));
    let expiry = (now + receipt.lifetime().get()).div_ceil(1_000);
    assert_eq!(client.expiry(b"r"), Value::Number(expiry as i64));
    assert_eq!(receipt.source, Source::Store);
}

#[test]
fn the_time_is_that_of_redis() {
    let server = Server::start();
    let mut client = server.connect();
    let mut batch = Batch::new(9);
    batch.reset(b"k").expect("room");
    batch.set_deadline(Some(Timestamp::from_micros(5)));
    let time = |client: &mut Client| match client.run(&[b"TIME"]) {
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
    assert_eq!(reply.rows, [Row::Stale]);
}

#[test]
fn a_call_may_have_thousands_of_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let policy = policy("p", 2, 1_000_000_000, MODES[0]);
    client.run(&[b"LPUSH", b"k:1500", b"x"]);
    let names: Vec<_> = (0..5_000).map(|number| format!("k:{number}")).collect();
    let mut batch = Batch::new(1);
    for name in &names {
        batch.decide(&[line(name, &policy, 1)]).expect("room");
    }
    for remaining in [1, 0] {
        let reply = client.call(
            &batch,
            Some(Timestamp::from_micros(next_year() / 1_000_000_000 * 1_000_000_000)),
        );
        for (number, row) in reply.rows.iter().enumerate() {
            match row {
                Row::Verdict(verdict, _) => assert_eq!(verdict.decisions()[0].remaining, remaining),
                Row::Fault { fault: Fault::WrongType, key: 1_500 } => assert_eq!(number, 1_500),
                other => panic!("{number}: {other:?}"),
            }
        }
    }
}

#[test]
fn lua_divides_products_exactly() {
    const NUMBER: &str = include_str!("../../lua/number.lua");
    let server = Server::start();
    let mut client = server.connect();
    let script = format!(
        "local number = (function() {NUMBER} end)() local a, b, d = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
        return string.format('%.0f %.0f', number.mul_div_floor(a, b, d), number.mul_div_ceil(a, b, d))"
    );
    let mut rng = Rng::with_seed(5);
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
    for case in &cases {
        let words = case.map(|number| number.to_string());
        let args = words.iter().map(String::as_bytes);
        let mut command: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"0"];
        command.extend(args);
        client.say(&command);
        let [a, b, divisor] = case.map(u128::from);
        let expected = [a * b / divisor, (a * b).div_ceil(divisor)];
        let Value::Text(found) = client.hear() else { panic!("no answer") };
        let found = String::from_utf8(found).expect("ASCII");
        for (found, expected) in found.split(' ').zip(expected) {
            let found: u128 = found.parse().expect("a number");
            // Past 2^53 it is enough to be past 2^53.
            let same = found == expected || (expected > 1 << 53 && found >= 1 << 53);
            assert!(same, "{a} · {b} / {divisor} is {expected}, not {found}");
        }
    }
}
