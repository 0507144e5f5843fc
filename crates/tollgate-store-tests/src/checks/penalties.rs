//! Penalties: strikes and blocks.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{
    Charge, Cost, Key, Micros, PenaltyBlock, Policy, Settlement, Store, Strikes, Verdict,
};

use super::{MODES, advance, decide, policy, receipt, remaining, settle};
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

/// Sends a request that charges a policy and a penalty with the same key.
async fn send(store: &impl Store, policies: [&Policy; 2], key: &Key) -> Verdict {
    decide(store, &policies.map(|policy| Charge::new(policy, key, Cost::ONE))).await
}

fn block(verdict: &Verdict) -> Option<Micros> {
    verdict.decisions()[1].retry_after()
}

/// Denies three requests, and returns the block that starts with the third.
async fn until_blocked(store: &impl Store, both: [&Policy; 2], key: &Key) -> Micros {
    for left in [2, 1] {
        let denied = send(store, both, key).await;
        assert_eq!((denied.is_admitted(), denied.decisions()[1].remaining), (false, left));
        assert_eq!(block(&denied), None);
    }
    block(&send(store, both, key).await).expect("a block")
}

/// A block starts with the third denial. Requests during the block do not extend it.
pub async fn third_denial_blocks<H: Harness>(_: &H, store: &H::Store) {
    let (full, banned) = (policy("full", 1, MODES[1]), three_denials());
    let (both, key) = ([&full, &banned], Key::from("k"));
    assert!(send(store, both, &key).await.is_admitted());
    assert_eq!(remaining(store, &banned, &key).await, 3, "an admitted request is not a strike");
    let first = until_blocked(store, both, &key).await;
    assert_eq!(Duration::from(first), BLOCK);
    let again = block(&send(store, both, &key).await).expect("a block");
    assert!(again <= first, "{again:?} after {first:?}");
    assert_eq!(remaining(store, &banned, &Key::from("other")).await, 3);
}

/// Each block is longer than the last, up to the maximum. After a time without blocks, they are
/// short again.
pub async fn blocks_grow_and_are_forgotten<H: Harness>(harness: &H, store: &H::Store) {
    let (full, banned) = (policy("full", 1, MODES[1]), three_denials());
    let (both, key) = ([&full, &banned], Key::from("k"));
    assert!(send(store, both, &key).await.is_admitted());
    for expected in [BLOCK, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK] {
        let length = until_blocked(store, both, &key).await;
        assert_eq!(Duration::from(length), expected);
        advance(harness, Micros::new(length.get() - 1));
        assert_eq!(block(&send(store, both, &key).await), Some(Micros::new(1)));
        advance(harness, Micros::new(1));
        assert_eq!(block(&send(store, [&banned, &banned], &key).await), None);
    }
    advance(harness, BLOCK.into());
    assert_eq!(Duration::from(until_blocked(store, both, &key).await), BLOCK);
}

/// These denials are not strikes: for another key, by a shadow policy, and with a cost of 0.
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
    assert_eq!(remaining(store, &banned, &key).await, 2, "a shadow penalty also counts strikes");
    // Several charges to the penalty still add a single strike, in any order.
    decide(store, &[watched, denied(&key), watched]).await;
    assert_eq!(remaining(store, &banned, &key).await, 1);
}

/// Settling a penalty upwards adds a strike and has no other effect.
pub async fn settling_upwards_adds_a_strike<H: Harness>(_: &H, store: &H::Store) {
    let key = Key::from("k");
    let failures = penalty("failures", Strikes::of_failures(2, BLOCK));
    let full = policy("full", 1, MODES[1]);
    for _ in 0..4 {
        send(store, [&full, &failures], &key).await;
    }
    assert_eq!(remaining(store, &failures, &key).await, 2, "denials are not failures");
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

/// Many simultaneous denials cause a single block of normal length.
pub async fn concurrent_denials_cause_one_block<H: Harness>(_: &H, store: &H::Store) {
    let (full, banned, key) = (policy("full", 5, MODES[1]), three_denials(), Key::GLOBAL);
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let (store, full, banned) = (store.clone(), full.clone(), banned.clone());
        tasks.spawn(async move { send(&store, [&full, &banned], &Key::GLOBAL).await });
    }
    let verdicts = tasks.join_all().await;
    let admitted = verdicts.iter().filter(|verdict| verdict.is_admitted()).count();
    let not_blocked = verdicts.iter().filter(|it| !it.is_admitted() && block(it).is_none()).count();
    assert_eq!((admitted, not_blocked), (5, 2));
    let blocked = send(store, [&full, &banned], &key).await;
    assert!(block(&blocked).is_some_and(|block| Duration::from(block) <= BLOCK), "{blocked:?}");
}

/// A block without strikes denies until its end, and a shorter one does not end it earlier. It is
/// capped by the penalty's longest block, and a reset ends it.
pub async fn block_denies_until_its_end<H: Harness>(_: &H, store: &H::Store) {
    let (free, banned) = (policy("free", 9, MODES[1]), three_denials());
    let (both, key) = ([&free, &banned], Key::from("k"));
    assert!(send(store, both, &key).await.is_admitted());
    let ends_after = |length| store.block(&banned, &key, PenaltyBlock::of(length));
    let first = ends_after(BLOCK).await.expect("decided").expect("a block");
    assert_eq!(Duration::from(first), BLOCK);
    let shorter = ends_after(BLOCK / 2).await.expect("decided").expect("a block");
    assert!(shorter <= first && Duration::from(shorter) > BLOCK / 2, "{shorter:?}");
    let denied = send(store, both, &key).await;
    assert!(!denied.is_admitted() && block(&denied) <= Some(shorter));
    assert!(send(store, both, &Key::from("other")).await.is_admitted());
    let longest = ends_after(9 * BLOCK).await.expect("decided").expect("a block");
    assert_eq!(Duration::from(longest), 3 * BLOCK);
    store.reset(&banned, &key).await.expect("decided");
    assert!(send(store, both, &key).await.is_admitted());
}

/// An answer that left before the last block started changes nothing, in any order. A policy that is
/// no penalty cannot block.
pub async fn late_blocks_change_nothing<H: Harness>(_: &H, store: &H::Store) {
    let (free, banned) = (policy("free", 9, MODES[1]), three_denials());
    let (both, key) = ([&free, &banned], Key::from("k"));
    let left_at = send(store, both, &key).await.decided_at();
    let answer = |length| PenaltyBlock::of(length).as_known_at(left_at);
    let first = store.block(&banned, &key, answer(BLOCK)).await.expect("decided");
    assert_eq!(first.map(Duration::from), Some(BLOCK));
    let late = store.block(&banned, &key, answer(2 * BLOCK)).await.expect("decided");
    assert_eq!(late, None);
    assert!(block(&send(store, both, &key).await) <= first);
    let error = store.block(&free, &key, PenaltyBlock::of(BLOCK)).await.expect_err("no penalty");
    assert!(!error.is_outage() && error.to_string().contains("is not a penalty"), "{error}");
}
