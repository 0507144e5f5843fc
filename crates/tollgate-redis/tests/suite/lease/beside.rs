//! Leased policies in requests with other policies.

use tollgate_core::{Algorithm, Charge, Cost, Key, Policy, Quota, Refill, Source, Store};
use tollgate_redis::RedisStore;

use super::{Scene, policy};

/// Sends `times` requests that charge each policy one unit. Returns how many were admitted, and how
/// many came from blocks.
async fn ask(store: &RedisStore, all: &[(&Policy, &Key)], times: usize) -> (usize, usize) {
    let charges: Vec<_> =
        all.iter().map(|(policy, key)| Charge::new(policy, key, Cost::ONE)).collect();
    let (mut admitted, mut leased) = (0, 0);
    for _ in 0..times {
        let verdict = store.decide(&charges).await.unwrap();
        admitted += usize::from(verdict.is_admitted());
        leased += usize::from(verdict.source() == Source::Lease);
        // Let the refill tasks run.
        tokio::task::yield_now().await;
    }
    (admitted, leased)
}

#[tokio::test]
async fn unspendable_units_are_not_leased() {
    let scene = Scene::start();
    let store = scene.store().await;
    let leased = policy(100, Algorithm::TokenBucket { refill: Refill::Greedy });
    let exact = Policy::fixed_window_counter("exact", Quota::per_minute(10_000)).unwrap();
    let both = [(&leased, &Key::GLOBAL), (&exact, &Key::GLOBAL)];
    assert_eq!(ask(&store, &both, 120).await, (100, 0));
}

#[tokio::test]
async fn shared_key_is_leased_for_busy_clients() {
    let scene = Scene::start();
    let store = scene.store().await;
    let all = policy(400, Algorithm::FixedWindowCounter);
    let each = Policy::fixed_window_counter("each", Quota::per_minute(1_000)).unwrap();
    let each = each.with_lease(all.lease().unwrap()).unwrap();
    let mut passed = 0;
    for client in 0..30_u8 {
        let client = Key::new([client]);
        let both = [(&all, &Key::GLOBAL), (&each, &client)];
        passed += ask(&store, &both, 5).await.0;
    }
    let left = store.decide(&[Charge::new(&all, &Key::GLOBAL, Cost::ZERO)]).await.unwrap();
    assert_eq!((passed, left.decisions()[0].remaining), (150, 250));
    let busy = Key::new("busy");
    // A request that finds a block for only one of its keys is decided by Redis, where a fifth of
    // the 400 units may be leased. At least 170 of the 250 remain for 100 requests, so all are
    // admitted.
    let (passed, leased) = ask(&store, &[(&all, &Key::GLOBAL), (&each, &busy)], 100).await;
    assert!(passed == 100 && leased > 0, "{passed}, {leased}");
}
