//! Blocks for strikes.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{Charge, Cost, Key, Micros, Policy, Settlement, Store, Strikes, Verdict};

use super::{MODES, decide, policy, receipt, remaining, settle};
use crate::Harness;

/// Longer than any check takes.
const BLOCK: Duration = Duration::from_secs(600);

fn penalty(name: &str, strikes: Strikes) -> Policy {
    let strikes = strikes.block(BLOCK).growing(2, 3 * BLOCK).forgotten_after(BLOCK);
    Policy::penalty(name, strikes).expect("the checks' policies build")
}

fn three_denials() -> Policy {
    penalty("banned", Strikes::of_denials(3, BLOCK))
}

/// A request under a policy and a penalty of the same key.
async fn ask(store: &impl Store, policies: [&Policy; 2], key: &Key) -> Verdict {
    decide(store, &policies.map(|policy| Charge::new(policy, key, Cost::ONE))).await
}

fn block(verdict: &Verdict) -> Option<Micros> {
    verdict.decisions()[1].retry_after()
}

/// With the third denial a block begins; asking does not prolong it; the next is longer.
pub async fn denials_block_and_blocks_grow<H: Harness>(harness: &H, store: &H::Store) {
    let (full, banned) = (policy("full", 1, MODES[1]), three_denials());
    let (both, key) = ([&full, &banned], Key::from("k"));
    assert!(ask(store, both, &key).await.is_admitted());
    assert_eq!(remaining(store, &banned, &key).await, 3, "what is admitted strikes none");
    let (mut length, lengths) = (BLOCK, [BLOCK, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK]);
    for expected in lengths {
        for left in [2, 1] {
            let denied = ask(store, both, &key).await;
            assert_eq!((denied.is_admitted(), denied.decisions()[1].remaining), (false, left));
            assert_eq!(block(&denied), None);
        }
        let third = ask(store, both, &key).await;
        length = Duration::from(block(&third).expect("a block"));
        assert_eq!(length, expected);
        let again = ask(store, both, &key).await;
        assert!(block(&again) <= block(&third), "it is not prolonged");
        assert_eq!(remaining(store, &banned, &Key::from("other")).await, 3);
        if !harness.advance(expected.into()) {
            return;
        }
        assert_eq!(block(&ask(store, [&banned, &banned], &key).await), None);
    }
    harness.advance(BLOCK.into());
    for _ in 0..3 {
        ask(store, both, &key).await;
    }
    let first = block(&ask(store, both, &key).await).expect("a block");
    assert!(Duration::from(first) <= BLOCK && length > BLOCK, "forgotten after good behaviour");
}

/// These denials cause no strike: of another key, by a shadow policy, and of a cost of 0.
pub async fn only_denials_of_the_same_key_strike<H: Harness>(_: &H, store: &H::Store) {
    let (full, banned) = (policy("full", 1, MODES[1]), three_denials());
    let (key, other) = (Key::from("k"), Key::from("other"));
    for key in [&key, &other] {
        decide(store, &[Charge::new(&full, key, Cost::ONE)]).await;
    }
    let denied = |key| Charge::new(&full, key, Cost::ONE);
    let watched = Charge::new(&banned, &key, Cost::ONE);
    for charges in [
        [denied(&other), watched],
        [denied(&key).shadow(), watched],
        [denied(&key), Charge::new(&banned, &key, Cost::ZERO)],
    ] {
        decide(store, &charges).await;
        assert_eq!(remaining(store, &banned, &key).await, 3, "{charges:?}");
    }
    decide(store, &[denied(&key), watched.shadow(), denied(&other)]).await;
    assert_eq!(remaining(store, &banned, &key).await, 2, "a shadow counts too");
    // However often it is named, and wherever.
    decide(store, &[watched, denied(&key), watched]).await;
    assert_eq!(remaining(store, &banned, &key).await, 1);
}

/// Settling a penalty upwards adds a strike and has no other effect.
pub async fn failures_that_are_settled_strike<H: Harness>(_: &H, store: &H::Store) {
    let key = Key::from("k");
    let failures = penalty("failures", Strikes::of_failures(2, BLOCK));
    let full = policy("full", 1, MODES[1]);
    for _ in 0..4 {
        ask(store, [&full, &failures], &key).await;
    }
    assert_eq!(remaining(store, &failures, &key).await, 2, "denials are no failures");
    let mut receipts = Vec::new();
    for _ in 0..4 {
        receipts.push(receipt(store, &failures, &key, 1).await);
    }
    assert_eq!(settle(store, &receipts[0], 0).await, Settlement::Returned { units: 0 });
    assert_eq!(settle(store, &receipts[1], 2).await, Settlement::Charged { units: 1 });
    assert_eq!(settle(store, &receipts[1], 2).await, Settlement::Repeated);
    assert_eq!(remaining(store, &failures, &key).await, 1);
    assert_eq!(settle(store, &receipts[2], 2).await, Settlement::Charged { units: 1 });
    assert_eq!(settle(store, &receipts[3], 2).await, Settlement::Charged { units: 0 });
    let denied = decide(store, &[Charge::new(&failures, &key, Cost::ONE)]).await;
    assert!(!denied.is_admitted() && denied.decisions()[0].retry_after().is_some());
    store.reset(&failures, &key).await.expect("the store resets");
    assert_eq!(remaining(store, &failures, &key).await, 2);
}

/// Many denials at once make one block, and as long as one.
pub async fn many_denials_at_once_make_one_block<H: Harness>(_: &H, store: &H::Store) {
    let (full, banned, key) = (policy("full", 5, MODES[1]), three_denials(), Key::GLOBAL);
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let (store, full, banned) = (store.clone(), full.clone(), banned.clone());
        tasks.spawn(async move { ask(&store, [&full, &banned], &Key::GLOBAL).await });
    }
    let verdicts = tasks.join_all().await;
    let admitted = verdicts.iter().filter(|verdict| verdict.is_admitted()).count();
    let not_blocked = verdicts.iter().filter(|it| !it.is_admitted() && block(it).is_none()).count();
    assert_eq!((admitted, not_blocked), (5, 2));
    let blocked = ask(store, [&full, &banned], &key).await;
    assert!(block(&blocked).is_some_and(|block| Duration::from(block) <= BLOCK), "{blocked:?}");
}
