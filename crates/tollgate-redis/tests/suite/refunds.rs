//! Refunds out of the middle of long logs, beside the reference.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, Policy, Quota, Receipt, ReceiptId, Resolution, Timestamp,
};
use tollgate_redis::protocol::{Batch, Line, Row};
use tollgate_store_tests::reference::Reference;

use crate::support::{Client, Server};

const ENTRIES: u64 = 1_500;

/// A long log beside the reference.
struct Log {
    policy: Policy,
    client: Client,
    reference: Reference,
    now: u64,
    ids: u128,
    receipts: Vec<Receipt>,
}

impl Log {
    fn new(policy: Policy, server: &Server) -> Self {
        let (reference, receipts) = (Reference::default(), Vec::new());
        // The year 2100: ahead of the server's clock, so that nothing expires meanwhile.
        let now = 4_102_444_800_000_000;
        Self { policy, client: server.connect(), reference, now, ids: 0, receipts }
    }

    fn charge(&mut self, batch: &mut Batch, cost: u64) -> Row {
        let (policy, cost) = (&self.policy, Cost::new(cost));
        let line = Line { key: b"log", policy, cost, enforce: true, dry: false };
        batch.decide(&[line]).expect("room");
        let (charges, now) = ([Charge::new(policy, &Key::GLOBAL, cost)], self.time());
        let verdict = self.reference.decide(&charges, now);
        self.ids += 1;
        self.receipts.extend(verdict.receipts(&charges, || ReceiptId(self.ids)));
        let frozen = self.reference.frozen(&charges, &verdict, now);
        Row::Verdict(verdict, frozen.into())
    }

    fn refund(&mut self, batch: &mut Batch, index: usize, actual: u64) -> Row {
        let receipt = self.receipts.remove(index);
        let (name, actual) = (receipt.id.0.to_be_bytes(), Cost::new(actual));
        batch.settle(b"log", &name, &receipt, actual).expect("room");
        Row::Settlement(self.reference.settle(&receipt, actual, self.time()))
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn compare(&mut self, batch: &Batch, rows: &[Row]) {
        let now = self.time();
        assert_eq!(self.client.call(batch, Some(now)).rows, rows, "{:?} at {now:?}", self.policy);
    }
}

#[test]
fn refunds_out_of_a_long_log_are_those_of_the_core() {
    let server = Server::start();
    let window = Duration::from_secs(3);
    let exact = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
    let log = Policy::new("log", Quota::new(2 * ENTRIES, window), exact).expect("builds");
    let in_flight = Policy::concurrent_requests("log", 2 * ENTRIES, window).expect("builds");
    for (seed, policy) in (0..6).flat_map(|seed| [(seed, log.clone()), (seed, in_flight.clone())]) {
        let mut rng = Rng::with_seed(seed);
        let mut log = Log::new(policy, &server);
        log.client.run(&[b"FLUSHALL"]);
        for _ in 0..ENTRIES {
            log.now += 1_000;
            let mut batch = Batch::new(1);
            let row = log.charge(&mut batch, 1 + rng.u64(..2));
            log.compare(&batch, &[row]);
        }
        // Until all have aged out: each call takes one instant further.
        for _ in 0..300 {
            log.now += rng.u64(..20_000);
            let mut batch = Batch::new(1);
            let operations = 0..rng.usize(1..=6);
            let rows: Vec<_> = operations
                .map(|_| match rng.u8(..8) {
                    0..5 if !log.receipts.is_empty() => {
                        let index = rng.usize(..log.receipts.len());
                        log.refund(&mut batch, index, rng.u64(..2))
                    }
                    _ => log.charge(&mut batch, 1 + rng.u64(..3)),
                })
                .collect();
            log.compare(&batch, &rows);
        }
    }
}
