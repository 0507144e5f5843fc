//! Concurrency limits: a permit counts until it is returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, Micros, Policy, Receipt, Settlement, Store, StoreExt as _,
};

use super::{
    MODES, advance, charge, decide, fresh_id, pass_a_microsecond, policy, receipt, remaining,
    reset, settle,
};
use crate::Harness;

/// Longer than any check takes.
const TIME_TO_LIVE: Micros = Micros::new(600_000_000);

fn in_flight(name: &str, limit: u64) -> Policy {
    let time_to_live = Duration::from(TIME_TO_LIVE);
    Policy::concurrent_requests(name, limit, time_to_live).expect("the checks' policies build")
}

async fn renew(store: &impl Store, receipt: &Receipt) -> Option<Receipt> {
    store.renew(receipt).await.expect("the store renews")
}

/// Permits can be returned in any order, and each only once.
pub async fn permit_counts_until_it_is_returned<H: Harness>(_: &H, store: &H::Store) {
    let (policy, key) = (in_flight("flight", 3), Key::from("k"));
    let mut receipts = Vec::new();
    for cost in [1, 2] {
        receipts.push(receipt(store, &policy, &key, cost).await);
    }
    let denied = charge(store, &policy, &key, 1).await;
    assert!(denied.denies() && denied.retry_after() <= Some(TIME_TO_LIVE), "{denied:?}");
    for (receipt, left) in receipts.iter().rev().zip([2, 3]) {
        let units = receipt.charged.cost.get();
        assert_eq!(settle(store, receipt, 0).await, Settlement::Returned { units });
        assert_eq!(settle(store, receipt, 0).await, Settlement::Repeated);
        assert_eq!(remaining(store, &policy, &key).await, left);
    }
}

/// A process that dies does not return its permits, but they expire.
pub async fn unreturned_permit_expires<H: Harness>(harness: &H, store: &H::Store) {
    let (policy, key) = (in_flight("dead", 2), Key::from("k"));
    let dead = receipt(store, &policy, &key, 2).await;
    advance(harness, Micros::new(TIME_TO_LIVE.get() - 1));
    let denied = charge(store, &policy, &key, 1).await;
    assert_eq!(denied.retry_after(), Some(Micros::new(1)));
    advance(harness, Micros::new(1));
    let next = receipt(store, &policy, &key, 2).await;
    assert_eq!(
        settle(store, &dead, 0).await,
        Settlement::Lapsed,
        "it must not return another request's units"
    );
    assert_eq!(remaining(store, &policy, &key).await, 0);
    assert_eq!(settle(store, &next, 0).await, Settlement::Returned { units: 2 });
}

/// A request that renews its permit holds the units the entire time, and then returns them.
pub async fn renewal_extends_a_permit<H: Harness>(harness: &H, store: &H::Store) {
    let (policy, key) = (in_flight("long", 2), Key::from("k"));
    let mut held = receipt(store, &policy, &key, 1).await;
    for _ in 0..6 {
        advance(harness, Micros::new(TIME_TO_LIVE.get() / 2));
        held = renew(store, &held).await.expect("it was not settled");
        assert_eq!(remaining(store, &policy, &key).await, 1);
    }
    assert_eq!(settle(store, &held, 0).await, Settlement::Returned { units: 1 });
    assert_eq!(remaining(store, &policy, &key).await, 2);
}

/// However often a permit is renewed, its units count once and can be returned once.
pub async fn renewed_permit_counts_once<H: Harness>(_: &H, store: &H::Store) {
    let (policy, key) = (in_flight("renewed", 2), Key::from("k"));
    let first = receipt(store, &policy, &key, 1).await;
    let mut held = first.clone();
    for _ in 0..3 {
        held = renew(store, &held).await.expect("it was not settled");
        assert_eq!(remaining(store, &policy, &key).await, 1);
    }
    assert_eq!(settle(store, &held, 0).await, Settlement::Returned { units: 1 });
    assert_eq!(remaining(store, &policy, &key).await, 2);
    assert_eq!(renew(store, &held).await, None, "a returned permit is not renewed");
    assert_eq!(renew(store, &first).await, None, "not with its earlier receipt either");
    assert_eq!(remaining(store, &policy, &key).await, 2);
}

/// Renewing a lapsed permit charges it again, because the request is still in flight.
pub async fn renewal_charges_lapsed_permit_again<H: Harness>(harness: &H, store: &H::Store) {
    let (policy, key) = (in_flight("late", 2), Key::from("k"));
    let late = receipt(store, &policy, &key, 2).await;
    advance(harness, TIME_TO_LIVE);
    receipt(store, &policy, &key, 1).await;
    let late = renew(store, &late).await.expect("it was not settled");
    assert!(
        charge(store, &policy, &key, 1).await.denies(),
        "three units are in flight at a limit of two"
    );
    assert_eq!(settle(store, &late, 0).await, Settlement::Returned { units: 2 });
    assert_eq!(remaining(store, &policy, &key).await, 1);
}

/// A reset removes a permit, and renewing it charges it again.
pub async fn renewal_charges_permit_again_after_reset<H: Harness>(harness: &H, store: &H::Store) {
    let (policy, key) = (in_flight("reset", 2), Key::from("k"));
    let lost = receipt(store, &policy, &key, 2).await;
    reset(store, &policy, &key).await;
    assert_eq!(remaining(store, &policy, &key).await, 2);
    pass_a_microsecond(harness, store).await;
    let found = renew(store, &lost).await.expect("it was not settled");
    assert_eq!(remaining(store, &policy, &key).await, 0);
    assert_eq!(settle(store, &found, 0).await, Settlement::Returned { units: 2 });
}

/// Two service versions running side by side count each other's requests.
pub async fn changed_limit_preserves_permits<H: Harness>(harness: &H, store: &H::Store) {
    let (small, large, key) = (in_flight("limit", 2), in_flight("limit", 5), Key::from("k"));
    let first = receipt(store, &small, &key, 2).await;
    pass_a_microsecond(harness, store).await;
    let second = receipt(store, &large, &key, 3).await;
    assert!(charge(store, &small, &key, 1).await.denies());
    pass_a_microsecond(harness, store).await;
    assert_eq!(settle(store, &first, 0).await, Settlement::Returned { units: 2 });
    let second = renew(store, &second).await.expect("it was not settled");
    assert_eq!(remaining(store, &large, &key).await, 2);
    assert_eq!(settle(store, &second, 0).await, Settlement::Returned { units: 3 });
    assert_eq!(remaining(store, &small, &key).await, 2);
}

/// Receipts of rate limits cannot be renewed.
pub async fn only_permits_can_be_renewed<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let receipt = receipt(store, &policy, &Key::GLOBAL, 4).await;
        let error = store.renew(&receipt).await.expect_err("there is no permit");
        assert!(!error.is_outage() && !error.may_have_charged(), "{error}");
        assert_eq!(remaining(store, &policy, &Key::GLOBAL).await, 6, "{algorithm:?}");
    }
}

/// Many tasks take, renew and return permits. The number in flight never exceeds the limit, and in
/// the end all units are available again.
pub async fn concurrency_never_exceeds_the_limit<H: Harness>(_: &H, store: &H::Store) {
    const LIMIT: u64 = 7;
    let policy = in_flight("storm", LIMIT);
    assert_eq!(policy.algorithm(), Some(Algorithm::ConcurrentRequests));
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let (store, policy) = (store.clone(), policy.clone());
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        tasks.spawn(async move {
            for n in 0..25 {
                let cost = 1 + (task + n) % 3;
                let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(cost))];
                let verdict = decide(&store, &charges).await;
                let Some(receipt) = verdict.receipts(&charges, fresh_id).next() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                most.fetch_max(now.fetch_add(cost, Ordering::SeqCst) + cost, Ordering::SeqCst);
                let receipt = renew(&store, &receipt).await.expect("it was not settled");
                tokio::task::yield_now().await;
                now.fetch_sub(cost, Ordering::SeqCst);
                settle(&store, &receipt, 0).await;
            }
        });
    }
    tasks.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((1..=LIMIT).contains(&most), "{most}");
    assert_eq!(remaining(store, &policy, &Key::GLOBAL).await, LIMIT);
}

/// A permit that returns under an old quota does not bring that quota back.
pub async fn returned_permit_restores_no_quota<H: Harness>(_: &H, store: &H::Store) {
    let lasting = |time| Policy::concurrent_requests("restored", 7, time).expect("a valid policy");
    let (old, new) = (lasting(Duration::from_secs(3_600)), lasting(Duration::from_secs(60)));
    let key = Key::from("k");
    let (returned, grown) =
        (receipt(store, &old, &key, 1).await, receipt(store, &new, &key, 2).await);
    assert_eq!(settle(store, &returned, 0).await, Settlement::Returned { units: 1 });
    assert_eq!(settle(store, &grown, 3).await, Settlement::Charged { units: 1 });
    let verdict = store.peek(&new, &key).await.expect("the store decides");
    let decision = verdict.decisions()[0];
    assert_eq!(decision.remaining, 4);
    assert!(decision.reset_after <= Micros::new(60_000_000), "{decision:?}");
}
