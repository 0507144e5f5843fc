//! A block's limits, to the microsecond and to the unit.

use std::sync::atomic::Ordering;

use tollgate_core::{
    Charge, Cost, Key, Lease, Outcome, Policy, Quota, ReceiptId, Settlement, Source, Store,
};

use super::{ALGORITHMS, START, Scene, TTL, ask, drain, policy, until_leased};

#[tokio::test]
async fn block_expires_to_the_microsecond() {
    let scene = Scene::start();
    for algorithm in ALGORITHMS {
        let policy =
            Policy::new(format!("{algorithm:?}"), policy(6_000, algorithm).quota(), algorithm);
        let policy = policy.unwrap().with_lease(Lease::of(1, 5)).unwrap();
        let store = scene.store().await;
        scene.set(START + 10_000_000);
        until_leased(&store, &policy).await;
        scene.set(scene.now() + TTL);
        let last = ask(&store, &policy, 1).await;
        assert_eq!((last.source(), last.is_admitted()), (Source::Lease, true), "{algorithm}");
        scene.set(scene.now() + 1);
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Store, "{algorithm}");
    }
}

#[tokio::test]
async fn block_expires_with_its_window() {
    let scene = Scene::start();
    for (name, algorithm) in [("fixed", ALGORITHMS[0]), ("sliding", ALGORITHMS[3])] {
        let quota = Quota::per_minute(6_000);
        let policy =
            Policy::new(name, quota, algorithm).unwrap().with_lease(Lease::of(1, 5)).unwrap();
        let store = scene.store().await;
        scene.set(START + 59_999_990);
        until_leased(&store, &policy).await;
        scene.set(START + 59_999_999);
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Lease);
        scene.set(START + 60_000_000);
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Store);
    }
}

/// The price of leases is the units held by replicas. They are available again after replicas
/// return them.
#[tokio::test]
async fn unused_units_are_bounded_and_returned() {
    for algorithm in ALGORITHMS {
        let scene = Scene::start();
        let policy = policy(6_000, algorithm);
        let stores = [scene.store().await, scene.store().await, scene.store().await];
        let mut admitted = 0;
        let mut rng = fastrand::Rng::with_seed(tollgate_store_tests::seed());
        // One replica after another goes silent while holding units.
        for silent in 0..3 {
            for _ in 0..1_500 {
                let store = &stores[rng.usize(silent..3)];
                admitted += u64::from(ask(store, &policy, 1).await.is_admitted());
                tokio::task::yield_now().await;
            }
        }
        admitted += drain(&stores[2], &policy).await;
        assert!(admitted <= 6_000, "{algorithm}: {admitted}");
        assert!(admitted >= 6_000 - 3 * 1_200, "{algorithm}: {admitted}");
        assert!(stores.iter().map(|store| store.stats().leased).sum::<u64>() > 1_000);
        // Blocks do not lapse, because time does not advance.
        for store in &stores {
            store.return_leases().await;
        }
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        admitted += drain(&stores[0], &exact).await;
        assert_eq!(admitted, 6_000, "{algorithm}");
    }
}

/// The call for a block is at any stage when the replica returns its leases, and the process may exit
/// afterwards.
#[tokio::test]
async fn block_in_flight_is_returned() {
    let scene = Scene::start();
    let (store, other) = (scene.store().await, scene.store().await);
    for yields in 0..128 {
        let name = format!("after {yields} yields");
        let exact = Policy::new(&*name, Quota::per_minute(6_000), ALGORITHMS[0]).unwrap();
        let leased = exact.clone().with_lease(Lease::of(1, 5)).unwrap();
        // The last of these decisions makes the key hot, so the store requests a block.
        let hot = 16;
        for _ in 0..hot {
            assert_eq!(ask(&store, &leased, 1).await.source(), Source::Store);
        }
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        store.return_leases().await;
        let left = ask(&other, &exact, 0).await.decisions()[0].remaining;
        assert_eq!(left, 6_000 - hot, "{name}");
    }
}

#[tokio::test]
async fn rare_requests_are_exact() {
    let scene = Scene::start();
    let (store, policy) = (scene.store().await, policy(600_000, ALGORITHMS[4]));
    for _ in 0..200 {
        // Ten requests per lease time.
        scene.set(scene.now() + TTL / 10);
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Store);
        tokio::task::yield_now().await;
    }
    assert!(until_leased(&store, &policy).await.1 > 5);
}

#[tokio::test]
async fn lease_must_cover_all_charges() {
    let scene = Scene::start();
    let store = scene.store().await;
    let leased = policy(60_000, ALGORITHMS[4]);
    let other = Policy::token_bucket("other", Quota::per_minute(60_000)).unwrap();
    until_leased(&store, &leased).await;
    let key = Key::GLOBAL;
    let both = [Charge::new(&leased, &key, Cost::ONE), Charge::new(&other, &key, Cost::ONE)];
    assert_eq!(store.decide(&both).await.unwrap().source(), Source::Store);
    let twins = [both[0], both[0]];
    assert_eq!(store.decide(&twins).await.unwrap().source(), Source::Store);
    let peek = [Charge::new(&leased, &key, Cost::ZERO)];
    assert_eq!(store.decide(&peek).await.unwrap().source(), Source::Store);
    // With a block for each policy, the replica answers.
    let other = other.clone().with_lease(Lease::default()).unwrap();
    until_leased(&store, &other).await;
    until_leased(&store, &leased).await;
    let both = [both[0], Charge::new(&other, &key, Cost::ONE)];
    let verdict = store.decide(&both).await.unwrap();
    assert_eq!((verdict.source(), verdict.decisions().len()), (Source::Lease, 2));
}

#[tokio::test]
async fn leased_unit_is_refunded_once() {
    let scene = Scene::start();
    let policy = policy(6_000, ALGORITHMS[0]);
    let (store, other) = (scene.store().await, scene.store().await);
    let (verdict, taken) = until_leased(&store, &policy).await;
    let key = Key::GLOBAL;
    let charges = [Charge::new(&policy, &key, Cost::ONE)];
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().unwrap();
    assert_eq!(receipt.source, Source::Lease);
    let settled = store.settle(&receipt, Cost::ZERO).await.unwrap();
    assert_eq!(settled, Settlement::Returned { units: 1 });
    // In another process too.
    assert_eq!(other.settle(&receipt, Cost::ZERO).await.unwrap(), Settlement::Repeated);
    store.return_leases().await;
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    let left = ask(&other, &exact, 1).await.decisions()[0].remaining;
    assert_eq!(left, 6_000 - taken + 1 - 1);
}

#[tokio::test]
async fn reset_keeps_leased_units() {
    let scene = Scene::start();
    for algorithm in ALGORITHMS {
        let policy = policy(600, algorithm);
        let (store, other) = (scene.store().await, scene.store().await);
        let (verdict, _) = until_leased(&store, &policy).await;
        let Outcome::Allow { .. } = verdict.decisions()[0].outcome else { panic!("{verdict:?}") };
        store.reset(&policy, &Key::GLOBAL).await.unwrap();
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        let admitted = drain(&other, &exact).await;
        let local = drain(&store, &policy).await;
        assert!(local > 0 && admitted + local <= 600, "{algorithm}: {admitted} and {local}");
        scene.time.fetch_add(120_000_000, Ordering::SeqCst);
    }
}
