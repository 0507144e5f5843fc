//! cargo run --release -p tollgate-redis --example measure
//!
//! Measures a decision's processor time in Redis, in microseconds. INFO reports it without the time
//! that other programs take.

#[path = "../tests/suite/support/mod.rs"]
mod support;

use std::time::Duration;

use support::{ScriptClient, Server};
use tollgate_core::{
    Algorithm, Charged, Cost, Key, LeakyMode, Policy, Quota, Receipt, ReceiptId, Refill,
    Resolution, Settlement, Source, Timestamp,
};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer};

/// Calls that wait for their answers at one time.
const AT_ONCE: usize = 8;

fn main() {
    let server = Server::start();
    let mut client = server.connect();
    let log = |resolution| Algorithm::SlidingWindowLog { resolution };
    println!("µs of a script of TIME, GET and SET: {:.2}\n", baseline(&mut client));
    let algorithms = [
        ("fixed_window_counter", Algorithm::FixedWindowCounter),
        ("sliding_window_log", log(Resolution::Thousandth)),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter),
        ("token_bucket", Algorithm::TokenBucket { refill: Refill::Greedy }),
        ("leaky_bucket", Algorithm::LeakyBucket { mode: LeakyMode::Meter }),
    ];
    println!(
        "{:28} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "µs a decision", "1", "256 hot", "denied", "256 keys", "2 policies", "queued"
    );
    for (name, algorithm) in algorithms {
        let quota = Quota::new(1_000_000, Duration::from_secs(60));
        let roomy = Policy::new(name, quota, algorithm).expect("builds");
        let tight = Policy::new("tight", Quota::new(1, Duration::from_secs(3_600)), algorithm);
        let tight = tight.expect("builds");
        // Each request gets a place behind the one before it.
        let queue = format!("queue {name}");
        let queue = Policy::new(queue, Quota::new(1_000, Duration::from_secs(60)), algorithm);
        let queue = queue.and_then(|it| it.with_queue(Duration::from_secs(3_600))).expect("builds");
        let other =
            Policy::fixed_window_counter("other", Quota::per_minute(1_000_000)).expect("builds");
        println!(
            "{name:28} {:9.2} {:9.2} {:9.2} {:9.2} {:9.2} {:9.2}",
            cost(&mut client, &[&roomy], 1, 1, 20_000),
            cost(&mut client, &[&roomy], 256, 1, 400),
            cost(&mut client, &[&tight], 256, 1, 400),
            cost(&mut client, &[&roomy], 256, 256, 400),
            cost(&mut client, &[&roomy, &other], 256, 256, 200),
            cost(&mut client, &[&queue], 1, 1, 20_000),
        );
    }
    println!(
        "\n{:28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "µs a call, exact log of", "admit", "deny 1", "deny half", "refund", "bytes"
    );
    for entries in [100, 1_000, 10_000, 100_000] {
        logs(&mut client, entries);
    }
}

/// Microseconds per decision, with `requests` decisions in each call, spread over `keys` keys.
fn cost(
    client: &mut ScriptClient,
    policies: &[&Policy],
    requests: usize,
    keys: usize,
    calls: usize,
) -> f64 {
    let names: Vec<Vec<String>> = (0..keys)
        .map(|key| {
            let name =
                |policy: &&Policy| format!("tollgate:0123456789abcdef{key:04}:{}", policy.name());
            policies.iter().map(name).collect()
        })
        .collect();
    let mut batch = Batch::new(1);
    for request in 0..requests {
        let lines: Vec<_> = policies
            .iter()
            .zip(&names[request % keys])
            .map(|(policy, key)| KeyedCharge::new(key.as_bytes(), policy, Cost::ONE))
            .collect();
        batch.decide(&lines).expect("room");
    }
    let mut run = |calls: usize| {
        let before = client.cpu_time();
        // Many calls in flight, like in a busy replica, because the sockets then cost least.
        for _ in 0..calls / AT_ONCE {
            (0..AT_ONCE).for_each(|_| client.say_call(&batch, None));
            (0..AT_ONCE).for_each(|_| drop(client.hear_reply(&batch)));
        }
        let calls = calls / AT_ONCE * AT_ONCE;
        (client.cpu_time() - before) / calls as f64 / requests as f64
    };
    run(calls / 10);
    let mut all: Vec<_> = (0..5).map(|_| run(calls / 5)).collect();
    all.sort_by(f64::total_cmp);
    all[2]
}

/// A full log, where each call adds an entry and another expires.
fn logs(client: &mut ScriptClient, entries: u64) {
    const STEP: u64 = 1_000;
    let algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
    let window = Duration::from_micros(entries * STEP);
    let policy = Policy::new("log", Quota::new(entries, window), algorithm).expect("builds");
    let key = format!("log:{entries}");
    let single = |cost| {
        let mut batch = Batch::new(1);
        let cost = Cost::new(cost);
        let line = KeyedCharge::new(key.as_bytes(), &policy, cost);
        batch.decide(&[line]).expect("room");
        batch
    };
    // Ahead of Redis' clock, because no key should expire meanwhile.
    let mut now = 2_000_000_000_000_000;
    let mut run = |batch: &Batch, calls: u64, step: u64, passes: bool| {
        let before = client.cpu_time();
        for _ in 0..calls {
            now += step;
            let reply = client.call(batch, Some(Timestamp::from_micros(now)));
            let ScriptAnswer::Verdict(verdict, _) = &reply.rows[0] else { panic!("{reply:?}") };
            assert_eq!(verdict.is_admitted(), passes);
        }
        let after = client.cpu_time();
        (after - before) / calls as f64
    };
    let one = single(1);
    run(&one, entries, STEP, true);
    let admit = run(&one, 4_000, STEP, true);
    let deny = run(&one, 4_000, 0, false);
    let half = run(&single(entries / 2), 4_000, 0, false);
    let support::Value::Number(bytes) = client.run(&[b"STRLEN", key.as_bytes()]) else { panic!() };
    let refund = refunds(client, key.as_bytes(), &policy, now - entries / 2 * STEP, now);
    println!("{entries:<28} {admit:9.2} {deny:9.2} {half:9.2} {refund:9.2} {bytes:9}");
}

/// Microseconds per refund of the charge in a log's middle, which costs the most.
fn refunds(client: &mut ScriptClient, key: &[u8], policy: &Policy, middle: u64, now: u64) -> f64 {
    const CALLS: u64 = 20;
    let before = client.cpu_time();
    for number in 0..CALLS {
        let charged_at = Timestamp::from_micros(middle + number * 1_000);
        let receipt = Receipt {
            id: ReceiptId(number.into()),
            source: Source::Store,
            policy: policy.clone(),
            key: Key::GLOBAL,
            charged: Charged::new(policy, Cost::ONE, charged_at),
        };
        let mut batch = Batch::new(1);
        let settled = format!("receipt:{}:{number}", policy.quota().limit());
        batch.settle(key, settled.as_bytes(), &receipt, Cost::ZERO).expect("room");
        let reply = client.call(&batch, Some(Timestamp::from_micros(now)));
        assert_eq!(reply.rows, [ScriptAnswer::Settlement(Settlement::Returned { units: 1 })]);
    }
    (client.cpu_time() - before) / CALLS as f64
}

/// The least that a limiter over Redis does: the time, a read and a write.
fn baseline(client: &mut ScriptClient) -> f64 {
    const SCRIPT: &[u8] = b"redis.call('TIME') local v = redis.call('GET', KEYS[1]) \
        redis.call('SET', KEYS[1], ARGV[1], 'PXAT', 2000000000000) return v";
    const KEY: &[u8] = b"tollgate:0123456789abcdef0000:baseline";
    let before = client.cpu_time();
    for _ in 0..20_000 / AT_ONCE {
        (0..AT_ONCE).for_each(|_| client.say(&[b"EVAL", SCRIPT, b"1", KEY, &[b'.'; 40]]));
        (0..AT_ONCE).for_each(|_| drop(client.hear()));
    }
    (client.cpu_time() - before) / 20_000.0
}
