//! Penalties in a full store. Keys in an overflow entry are other clients, so no strike counts there.

use std::time::Duration;

use tollgate_core::{Charge, Cost, Key, Policy, ReceiptId, Settlement, Store, Strikes, Verdict};
use tollgate_memory::{ManualClock, MemoryStore};

use super::{build, numbered, per_minute};
use crate::now;

const HOUR: Duration = Duration::from_secs(3_600);

fn decide(store: &MemoryStore<ManualClock>, charges: &[Charge<'_>]) -> Verdict {
    store.decide(charges).into_inner().expect("a memory store decides")
}

fn is_blocked(store: &MemoryStore<ManualClock>, penalty: &Policy, key: &Key) -> bool {
    !decide(store, &[Charge::new(penalty, key, Cost::ONE)]).is_admitted()
}

#[test]
fn overflow_denials_block_no_key() {
    let (full, banned) = (per_minute(1), Policy::penalty("banned", Strikes::of_denials(2, HOUR)));
    let banned = banned.expect("builds");
    // Two entries suffice for the first key's units and strikes.
    let (store, _clock) = build(|store| store.max_keys(2));
    let (first, late, other) = (numbered(0), numbered(1), numbered(2));
    let mut blocked = Vec::new();
    for key in [&first, &late] {
        let charges = [&full, &banned].map(|policy| Charge::new(policy, key, Cost::ONE));
        for _ in 0..5 {
            decide(&store, &charges);
        }
        blocked.push(is_blocked(&store, &banned, key));
    }
    assert_eq!(blocked, [true, false], "only the first key has its own entry");
    assert!(!is_blocked(&store, &banned, &other));
}

#[test]
fn overflow_failures_block_no_key() {
    let failures = Policy::penalty("failures", Strikes::of_failures(2, HOUR)).expect("builds");
    let (store, _clock) = build(|store| store.max_keys(1));
    let mut ids = (0..).map(ReceiptId);
    let mut fail = |key: &Key| {
        let charges = [Charge::new(&failures, key, Cost::ONE)];
        let verdict = decide(&store, &charges);
        let receipt = verdict.receipts(&charges, || ids.next().expect("endless")).next();
        let receipt = receipt.expect("an admitted charge has a receipt");
        now(store.settle(&receipt, Cost::new(2))).expect("settles")
    };
    let (first, late, other) = (numbered(0), numbered(1), numbered(2));
    for (key, units) in [(&first, 1), (&late, 0)] {
        for _ in 0..2 {
            assert_eq!(fail(key), Settlement::Charged { units });
        }
    }
    let blocked = [&first, &late, &other].map(|key| is_blocked(&store, &failures, key));
    assert_eq!(blocked, [true, false, false]);
}
