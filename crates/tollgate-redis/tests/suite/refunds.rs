//! Refunds from the middle of long logs: their memory and their time.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Charge, Charged, Cost, Key, Policy, Quota, Receipt, ReceiptId, Resolution,
    Settlement, Source, Timestamp,
};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer, TEXT};
use tollgate_store_tests::reference::Reference;
use tollgate_store_tests::seed;

use crate::support::{ScriptClient, Server, Value};

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
    for (log, key, limit, _) in [&mut shorter, &mut longer] {
        // Five sixths of the entries expire.
        log.now += log.policy.window().get() - *limit / 6;
        let is_live = |n: &u64| 1 + n * 7_919 % *limit > *limit * 5 / 6;
        let refunded = (0..200).filter(is_live).count() as u64;
        assert_eq!(log.remaining(key), *limit * 5 / 6 + refunded, "{key}");
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

    fn remaining(&mut self, key: &str) -> u64 {
        let mut batch = Batch::new(1);
        let peek = KeyedCharge::new(key.as_bytes(), &self.policy, Cost::ZERO);
        batch.decide(&[peek]).expect("room");
        let rows = self.client.call(&batch, Some(self.time())).rows;
        let ScriptAnswer::Verdict(verdict, _) = &rows[0] else { panic!("{rows:?}") };
        verdict.decisions()[0].remaining
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
