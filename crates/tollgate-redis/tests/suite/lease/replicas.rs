//! Replicas in real time.

use std::time::Duration;

use tollgate_core::{Key, Lease, Policy, Quota, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Redis, until_async};

use super::{ask, until_leased};
use crate::support::{connected, patient};

fn daily(limit: u64) -> Policy {
    let policy = Policy::sliding_window_log("p", Quota::per_day(limit)).unwrap();
    policy.with_lease(Lease::of(1, 10)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn busy_replicas_rarely_call_redis() {
    let server = Redis::start();
    let policy = daily(200_000);
    let mut tasks = tokio::task::JoinSet::new();
    let mut stores = Vec::new();
    for _ in 0..3 {
        let store = connected(patient(&server.url())).await;
        stores.push(store.clone());
        for _ in 0..8 {
            let (store, policy) = (store.clone(), policy.clone());
            tasks.spawn(async move {
                let mut admitted = 0_u64;
                while ask(&store, &policy, 1).await.is_admitted() {
                    admitted += 1;
                    if admitted.is_multiple_of(64) {
                        tokio::task::yield_now().await;
                    }
                }
                admitted
            });
        }
    }
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    let sum = |of: fn(&RedisStore) -> u64| stores.iter().map(of).sum::<u64>();
    let (requests, leased) =
        (sum(|store| store.stats().requests), sum(|store| store.stats().leased));
    assert!(admitted <= 200_000, "{admitted}");
    // A replica loses no units, because its blocks do not lapse here.
    assert!(leased > 150_000 && requests < 40_000, "{leased} of {admitted}, {requests} asked");
}

#[tokio::test]
async fn unspent_units_return_before_lapsing() {
    let server = Redis::start();
    let policy = Policy::sliding_window_log("p", Quota::per_day(10_000)).unwrap();
    // The task that returns the block has one second, even on a busy machine.
    let policy = policy.with_lease(Lease::of(1, 10).ttl(Duration::from_secs(4))).unwrap();
    let store = connected(patient(&server.url())).await;
    let (_, taken) = until_leased(&store, &policy).await;
    // No more requests arrive, so the block is returned after three seconds.
    let other = connected(patient(&server.url())).await;
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    until_async("the block is returned", Duration::from_secs(15), async || {
        let left = other.peek(&exact, &Key::GLOBAL).await.unwrap().decisions()[0].remaining;
        (left == 10_000 - taken).then_some(())
    })
    .await;
}
