//! The script and the reference in lockstep: each request goes to both.

use tollgate_core::{
    Cost, Decision, Key, Micros, Policy, Receipt, ReceiptId, Settlement, Timestamp,
};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer};
use tollgate_store_tests::reference::Reference;

use super::{ScriptClient, Value, expiry_of};

/// A key and a manual clock. Each call contains one request.
#[derive(Debug)]
pub struct Pair<'a> {
    pub client: &'a mut ScriptClient,
    pub reference: Reference,
    pub now: u64,
    key: String,
    receipts: u128,
}

impl<'a> Pair<'a> {
    /// Creates a pair. No other test may use `key` on the server.
    pub fn new(client: &'a mut ScriptClient, key: impl Into<String>, now: u64) -> Self {
        Self { client, reference: Reference::default(), now, key: key.into(), receipts: 0 }
    }

    /// Charges `cost`, and compares both decisions and the expiry.
    pub fn charge(&mut self, policy: &Policy, cost: u64) -> (Decision, Option<Receipt>) {
        let now = Timestamp::from_micros(self.now);
        let mut batch = Batch::at(1, now);
        let line = KeyedCharge::new(self.key.as_bytes(), policy, Cost::new(cost));
        batch.decide(&[line]).expect("room");
        let charges = [line.charge];
        let verdict = self.reference.decide(&charges, now);
        let decision = verdict.decisions()[0];
        let frozen = self.reference.frozen(&charges, &verdict, now).into();
        self.receipts += 1;
        let id = ReceiptId(self.receipts);
        let receipt = verdict.receipts(&charges, || id).next();
        let row = self.client.call(&batch, Some(now)).rows.remove(0);
        let should = ScriptAnswer::Verdict(verdict, frozen);
        assert_eq!(row, should, "{} at {}: {policy:?} {cost}", self.key, self.now);
        if receipt.is_some() {
            self.compare_expiry(policy);
        }
        self.reference.forget_resets();
        (decision, receipt)
    }

    /// Settles a receipt, and compares both settlements and the expiry.
    pub fn settle(&mut self, receipt: &Receipt, actual: u64) -> Settlement {
        let now = Timestamp::from_micros(self.now);
        let receipt_key = format!("{}:{}", self.key, receipt.id.0);
        let mut batch = Batch::at(1, now);
        let actual = Cost::new(actual);
        batch.settle(self.key.as_bytes(), receipt_key.as_bytes(), receipt, actual).expect("room");
        let settlement = self.reference.settle(receipt, actual, now);
        let row = self.client.call(&batch, Some(now)).rows.remove(0);
        let what = format!("{} at {}: {receipt:?} to {actual:?}", self.key, self.now);
        assert_eq!(row, ScriptAnswer::Settlement(settlement), "{what}");
        self.compare_expiry(&receipt.policy);
        settlement
    }

    /// Resets the key.
    pub fn reset(&mut self, policy: &Policy) {
        let now = Timestamp::from_micros(self.now);
        let mut batch = Batch::new(1);
        batch.reset(self.key.as_bytes()).expect("room");
        self.reference.reset(policy, &Key::GLOBAL, now);
        assert_eq!(self.client.call(&batch, Some(now)).rows, [ScriptAnswer::Reset]);
        self.reference.forget_resets();
        self.compare_expiry(policy);
    }

    /// Returns the size of the stored value in bytes.
    pub fn stored(&mut self) -> i64 {
        match self.client.run(&[b"STRLEN", self.key.as_bytes()]) {
            Value::Number(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn compare_expiry(&mut self, policy: &Policy) {
        let now = Timestamp::from_micros(self.now);
        let after = self.reference.fresh_after(policy, &Key::GLOBAL, now);
        let expiry = if after == Micros::ZERO {
            self.reference.drop_state(policy, &Key::GLOBAL);
            -2
        } else {
            expiry_of(now + after)
        };
        let found = self.client.expiry(self.key.as_bytes());
        assert_eq!(found, Value::Number(expiry), "{} at {}", self.key, self.now);
    }
}
