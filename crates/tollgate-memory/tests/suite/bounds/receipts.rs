//! Settlements when the store cannot remember all receipts.

use std::time::Duration;

use tollgate_core::{
    Charge, Cost, Key, Micros, Policy, Quota, Receipt, ReceiptId, Settlement, Store,
};

use super::{build, charge, numbered, per_minute};
use crate::now;

#[test]
fn zero_capacity_error_names_setting() {
    let (store, _clock) = build(|store| store.max_receipts(0));
    let policy = per_minute(5);
    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::ONE)];
    let verdict = store.decide(&charges).into_inner().expect("decides");
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next();
    let receipt = receipt.expect("an admitted charge has a receipt");
    let error = now(store.settle(&receipt, Cost::ZERO)).expect_err("no room for it");
    assert!(error.to_string().contains("raise `max_receipts`"), "{error}");
    assert!(!error.may_have_charged());
    assert_eq!(charge(&store, &policy, &Key::GLOBAL, 0).remaining, 4);
}

#[test]
fn forgotten_rate_limit_receipts_lapse() {
    let (store, clock) = build(|store| store.max_receipts(4).shards(1));
    let rate = per_minute(3);
    let mut ids = (1..).map(ReceiptId);
    let mut take = || {
        let charges = [Charge::new(&rate, &Key::GLOBAL, Cost::ONE)];
        let verdict = store.decide(&charges).into_inner().expect("decides");
        let mut receipts = verdict.receipts(&charges, || ids.next().expect("endless"));
        receipts.next().expect("there is room")
    };
    let settle = |receipt: &Receipt| {
        clock.advance(Micros::new(1_000));
        now(store.settle(receipt, Cost::ZERO)).expect("settles")
    };
    let slow = take();
    let mut quick = Vec::new();
    for _ in 0..100 {
        let receipt = take();
        assert_eq!(settle(&receipt), Settlement::Returned { units: 1 });
        assert_eq!(settle(&receipt), Settlement::Repeated);
        quick.push(receipt);
    }
    let again = |receipts: &[Receipt]| receipts.iter().map(settle).collect::<Vec<_>>();
    assert_eq!(again(&quick[96..]), [Settlement::Repeated; 4], "the last are remembered");
    assert_eq!(again(&quick[..96]), [Settlement::Lapsed; 96], "the other receipts refund nothing");
    assert_eq!(settle(&slow), Settlement::Lapsed, "it may be a forgotten receipt");
    let left = charge(&store, &rate, &Key::GLOBAL, 0);
    assert_eq!(left.remaining, 2);
}

#[test]
fn permits_are_returned_beyond_capacity() {
    let (store, _clock) = build(|store| store.max_receipts(4).shards(1));
    let hour = Duration::from_secs(3_600);
    let in_flight = Policy::concurrent_requests("in flight", 2, hour).expect("builds");
    let rate = per_minute(1_000);
    let mut ids = (1..).map(ReceiptId);
    let mut take = |policy: &Policy| {
        let charges = [Charge::new(policy, &Key::GLOBAL, Cost::ONE)];
        let verdict = store.decide(&charges).into_inner().expect("decides");
        assert!(verdict.is_admitted(), "{policy}");
        let mut receipts = verdict.receipts(&charges, || ids.next().expect("endless"));
        receipts.next().expect("an admitted charge has a receipt")
    };
    let settle = |receipt: &Receipt| now(store.settle(receipt, Cost::ZERO));
    // The rate limit receipts fill their capacity for an hour.
    let lapsed = |settled| settled == Ok(Settlement::Lapsed);
    let filled = (0..10).filter(|_| lapsed(settle(&take(&rate)).map_err(drop))).count();
    assert_eq!(filled, 6);
    for _ in 0..20 {
        let receipt = take(&in_flight);
        assert_eq!(settle(&receipt).expect("settles"), Settlement::Returned { units: 1 });
        assert_eq!(settle(&receipt).expect("settles"), Settlement::Repeated);
        let renewed = now(store.renew(&receipt)).expect("renews");
        assert_eq!(renewed, None, "a settled permit is not in flight");
    }
}

#[test]
fn overflow_permits_survive_limit_changes() {
    let (store, clock) = build(|store| store.max_keys(1));
    charge(&store, &per_minute(5), &numbered(0), 1);
    // Each policy gets its own overflow entry.
    for name in ["a", "b", "c"] {
        let policy = Policy::fixed_window_counter(name, Quota::per_minute(9)).expect("builds");
        charge(&store, &policy, &numbered(1), 1);
    }
    let minute = Duration::from_secs(60);
    let policy = |limit| Policy::concurrent_requests("q", limit, minute).expect("builds");
    let (few, more) = (policy(4), policy(8));
    let key = numbered(1);
    let charges = [Charge::new(&few, &key, Cost::ONE)];
    let verdict = store.decide(&charges).into_inner().expect("decides");
    let mut receipt = verdict.receipts(&charges, || ReceiptId(1)).next().expect("a receipt");
    for _ in 0..3 {
        clock.advance(Micros::new(15_000_000));
        receipt = now(store.renew(&receipt)).expect("renews").expect("in flight");
        assert_eq!(charge(&store, &few, &key, 0).remaining, 3);
    }
    assert_eq!(charge(&store, &more, &key, 1).remaining, 6);
    let settled = now(store.settle(&receipt, Cost::ZERO)).expect("settles");
    assert_eq!(settled, Settlement::Returned { units: 1 });
    assert_eq!(charge(&store, &more, &key, 0).remaining, 7);
}

#[test]
fn future_receipt_settles_only_once() {
    let (store, clock) = build(|store| store.shards(1));
    let policy = Policy::sliding_window_log("p", Quota::per_day(10)).expect("builds");
    let key = numbered(0);
    let receipt = |cost, id| {
        let charges = [Charge::new(&policy, &key, Cost::new(cost))];
        let verdict = store.decide(&charges).into_inner().expect("decides");
        let receipt = verdict.receipts(&charges, || ReceiptId(id)).next();
        receipt.expect("an admitted charge has a receipt")
    };
    charge(&store, &policy, &key, 1);
    let start = tollgate_memory::Clock::now(&clock);
    clock.set(start - Micros::new(7_200_000_000));
    let (first, second) = (receipt(5, 1), receipt(1, 2));
    let settle = |receipt, actual| now(store.settle(receipt, Cost::new(actual))).expect("settles");
    settle(&first, 3);
    clock.advance(Micros::new(3_600_000_001));
    settle(&second, 1);
    assert_eq!(settle(&first, 0), Settlement::Repeated);
}
