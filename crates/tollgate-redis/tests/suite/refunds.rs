//! Refunds from the middle of long logs, compared with the reference.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Charge, Charged, Cost, Key, Policy, Quota, Receipt, ReceiptId, Resolution,
    Settlement, Source, Timestamp,
};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer, TEXT};
use tollgate_store_tests::reference::Reference;
use tollgate_store_tests::{seed, seeds};

use crate::support::{ScriptClient, Server, Value};

const ENTRIES: u64 = 1_500;

/// A long log and its reference.
struct Log {
    policy: Policy,
    client: ScriptClient,
    reference: Reference,
    now: u64,
    ids: u128,
    receipts: Vec<Receipt>,
}

impl Log {
    fn new(policy: Policy, server: &Server, script: &str) -> Self {
        let (reference, receipts) = (Reference::default(), Vec::new());
        // The year 2100: ahead of the server's clock, so no key expires meanwhile.
        let now = 4_102_444_800_000_000;
        Self { policy, client: server.connect_with(script), reference, now, ids: 0, receipts }
    }

    fn charge(&mut self, batch: &mut Batch, cost: u64) -> ScriptAnswer {
        let (policy, cost) = (&self.policy, Cost::new(cost));
        let line = KeyedCharge::new(b"log", policy, cost);
        batch.decide(&[line]).expect("room");
        let (charges, now) = ([Charge::new(policy, &Key::GLOBAL, cost)], self.time());
        let verdict = self.reference.decide(&charges, now);
        self.ids += 1;
        self.receipts.extend(verdict.receipts(&charges, || ReceiptId(self.ids)));
        let frozen = self.reference.frozen(&charges, &verdict, now);
        ScriptAnswer::Verdict(verdict, frozen.into())
    }

    fn refund(&mut self, batch: &mut Batch, index: usize, actual: u64) -> ScriptAnswer {
        let receipt = self.receipts.remove(index);
        let (name, actual) = (receipt.id.0.to_be_bytes(), Cost::new(actual));
        batch.settle(b"log", &name, &receipt, actual).expect("room");
        ScriptAnswer::Settlement(self.reference.settle(&receipt, actual, self.time()))
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn compare(&mut self, batch: &Batch, rows: &[ScriptAnswer]) {
        let now = self.time();
        assert_eq!(self.client.call(batch, Some(now)).rows, rows, "{:?} at {now:?}", self.policy);
    }
}

#[test]
fn log_refunds_match_the_core() {
    compare_refunds(TEXT);
}

/// Uses the script's path for logs with thousands of entries.
#[test]
fn long_log_refunds_match_the_core() {
    let script = TEXT.replace("local MANY = 4096", "local MANY = 300");
    assert_ne!(script, TEXT);
    compare_refunds(&script);
}

fn compare_refunds(script: &str) {
    let server = Server::start();
    let window = Duration::from_secs(3);
    let exact = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
    let log = Policy::new("log", Quota::new(2 * ENTRIES, window), exact).expect("builds");
    let in_flight = Policy::concurrent_requests("log", 2 * ENTRIES, window).expect("builds");
    for (seed, policy) in seeds(2).flat_map(|seed| [(seed, log.clone()), (seed, in_flight.clone())])
    {
        let mut rng = Rng::with_seed(seed);
        let mut log = Log::new(policy, &server, script);
        log.client.run(&[b"FLUSHALL"]);
        for _ in 0..ENTRIES {
            log.now += 1_000;
            let mut batch = Batch::new(1);
            let row = log.charge(&mut batch, 1 + rng.u64(..2));
            log.compare(&batch, &[row]);
        }
        // In half of the traces, time hardly advances, so many more charges are refunded than
        // expire.
        let (calls, step) = if seed % 2 == 0 { (300, 20_000) } else { (800, 500) };
        for _ in 0..calls {
            log.now += rng.u64(..step);
            let mut batch = Batch::new(1);
            let operations = 0..rng.usize(1..=6);
            let rows: Vec<_> = operations
                .map(|_| match rng.u8(..8) {
                    0..5 if !log.receipts.is_empty() => {
                        let index = match rng.u8(..8) {
                            0 => log.receipts.len() - 1,
                            _ => rng.usize(..log.receipts.len()),
                        };
                        log.refund(&mut batch, index, rng.u64(..4) / 3)
                    }
                    _ => log.charge(&mut batch, 1 + rng.u64(..3)),
                })
                .collect();
            log.compare(&batch, &rows);
        }
    }
}

/// One permit is held for a long time while later permits are acquired and released.
#[test]
fn released_permits_use_no_memory() {
    let server = Server::start();
    let window = Duration::from_secs(3_600);
    let policy = Policy::concurrent_requests("log", 5_000, window).expect("builds");
    let script = TEXT.replace("local MANY = 4096", "local MANY = 300");
    let mut log = Log::new(policy, &server, &script);
    let mut rng = Rng::with_seed(seed());
    let mut most = 0;
    for n in 0..8_000 {
        log.now += 1 + rng.u64(..3);
        let mut batch = Batch::new(1);
        let mut rows = vec![log.charge(&mut batch, 1)];
        if log.receipts.len() > 500 {
            let index = 1 + rng.usize(..log.receipts.len() - 1);
            rows.push(log.refund(&mut batch, index, 0));
        }
        log.compare(&batch, &rows);
        if n % 100 == 0 {
            let Value::Number(bytes) = log.client.run(&[b"STRLEN", b"log"]) else { panic!() };
            most = most.max(bytes);
        }
    }
    assert!(most < 3 * 500 * 16, "{most} bytes for 500 permits");
}

/// Compares two logs on the same server in turns, so the machine's speed does not matter.
#[test]
fn refund_time_is_independent_of_length() {
    let server = Server::start();
    let window = Duration::from_secs(3_600);
    let exact = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
    let [mut shorter, mut longer] = [("shorter", 4_000), ("longer", 12_000)].map(|(key, limit)| {
        let policy = Policy::new("log", Quota::new(limit, window), exact).expect("builds");
        let mut log = Log::new(policy, &server, TEXT);
        log.fill(key, limit);
        (log, key, limit, 0.0)
    });
    for round in 0..20 {
        for (log, key, limit, took) in [&mut shorter, &mut longer] {
            let before = log.client.cpu_time();
            for n in 0..10 {
                log.refund_one_of(key, *limit, 10 * round + n);
            }
            *took += log.client.cpu_time() - before;
        }
    }
    let [shorter, longer] = [shorter, longer].map(|(.., took)| took / 200.0);
    println!("{shorter:.0} and {longer:.0} µs of Redis for a refund");
    assert!(longer < 2.0 * shorter, "{longer} µs of Redis for a refund, and {shorter}");
}

impl Log {
    /// Charges one unit per microsecond until the log is full.
    fn fill(&mut self, key: &str, limit: u64) {
        for _ in 0..limit / 500 {
            let calls = (0..500).map(|_| {
                self.now += 1;
                let mut batch = Batch::new(1);
                let (key, policy, cost) = (key.as_bytes(), &self.policy, Cost::ONE);
                batch.decide(&[KeyedCharge::new(key, policy, cost)]).expect("room");
                self.client.say_call(&batch, Some(self.time()));
                batch
            });
            let calls: Vec<_> = calls.collect();
            for batch in &calls {
                let reply = self.client.hear_reply(batch);
                let ScriptAnswer::Verdict(verdict, _) = &reply.rows[0] else { panic!("{reply:?}") };
                assert!(verdict.is_admitted());
            }
        }
    }

    /// Refunds a unit somewhere in a log that was filled with `limit` units.
    fn refund_one_of(&mut self, key: &str, limit: u64, n: u64) {
        let at = Timestamp::from_micros(self.now - limit + 1 + n * 7_919 % limit);
        let (id, policy) = (ReceiptId(n.into()), self.policy.clone());
        let charged = Charged::new(&policy, Cost::ONE, at);
        let receipt = Receipt { id, source: Source::Store, policy, key: Key::GLOBAL, charged };
        let mut batch = Batch::new(1);
        let name = format!("{key}:{n}");
        batch.settle(key.as_bytes(), name.as_bytes(), &receipt, Cost::ZERO).expect("room");
        let rows = self.client.call(&batch, Some(self.time())).rows;
        assert_eq!(rows, [ScriptAnswer::Settlement(Settlement::Returned { units: 1 })]);
    }
}
