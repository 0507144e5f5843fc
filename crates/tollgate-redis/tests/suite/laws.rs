//! The laws of combinations, for the script. Each call contains one request and has its own time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tollgate_core::{Charge, Cost, Key, Policy, Receipt, Settlement, Timestamp, Verdict};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer};
use tollgate_store_tests::law::Subject;
use tollgate_store_tests::{is_long, law_tests};

use crate::support::{ScriptClient, Server};

law_tests!(scripts());

/// Returns a function that returns scripts with different keys on one server.
fn scripts() -> impl Fn() -> Script {
    let server = Rc::new(Server::start());
    let client = Rc::new(RefCell::new(server.connect()));
    let scripts = Cell::new(0);
    move || {
        scripts.set(scripts.get() + 1);
        let (server, client) = (Rc::clone(&server), Rc::clone(&client));
        Script { _server: server, client, number: scripts.get() }
    }
}

struct Script {
    /// Runs until it is dropped.
    _server: Rc<Server>,
    client: Rc<RefCell<ScriptClient>>,
    number: u64,
}

impl Script {
    /// Charges with the same key have the same subject, so a denial of one penalises the other.
    fn key(&self, policy: &Policy, key: &Key) -> Vec<u8> {
        let prefix = format!("laws:{}:{{", self.number);
        [prefix.as_bytes(), &key.as_bytes(), b"}:", policy.name().as_bytes()].concat()
    }

    fn receipt_key(&self, receipt: &Receipt) -> Vec<u8> {
        [self.key(&receipt.policy, &receipt.key), receipt.id.0.to_string().into_bytes()].concat()
    }

    fn call(&self, batch: &Batch, now: Timestamp) -> ScriptAnswer {
        self.client.borrow_mut().call(batch, Some(now)).rows.remove(0)
    }
}

impl Subject for Script {
    fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict> {
        let keys: Vec<_> = charges.iter().map(|it| self.key(it.policy, it.key)).collect();
        let lines =
            charges.iter().zip(&keys).map(|(charge, key)| KeyedCharge { key, charge: *charge });
        let lines: Vec<_> = lines.collect();
        let mut batch = Batch::at(1, now);
        batch.decide(&lines).expect("room");
        match self.call(&batch, now) {
            ScriptAnswer::Verdict(verdict, _) => Some(verdict),
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, receipt: &Receipt, actual: Cost, now: Timestamp) -> Option<Settlement> {
        let key = self.key(&receipt.policy, &receipt.key);
        let mut batch = Batch::at(1, now);
        batch.settle(&key, &self.receipt_key(receipt), receipt, actual).expect("room");
        match self.call(&batch, now) {
            ScriptAnswer::Settlement(settlement) => Some(settlement),
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> Option<Option<Receipt>> {
        let key = self.key(&receipt.policy, &receipt.key);
        let mut batch = Batch::at(1, now);
        batch.renew(&key, &self.receipt_key(receipt), receipt).expect("room");
        match self.call(&batch, now) {
            ScriptAnswer::Renewal(charged_at) => Some(charged_at.map(|at| receipt.begun_at(at))),
            other => panic!("{other:?}"),
        }
    }

    fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) -> Option<()> {
        let mut batch = Batch::at(1, now);
        batch.reset(&self.key(policy, key)).expect("room");
        assert_eq!(self.call(&batch, now), ScriptAnswer::Reset);
        Some(())
    }

    /// A round trip takes longer than a decision in this process.
    fn steps() -> usize {
        if is_long() { 1_000_000 } else { 2_000 }
    }
}
