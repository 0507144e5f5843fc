//! Machines restored from the same snapshot, which have the same random bits.

use std::collections::HashSet;
use std::time::Duration;

use tollgate_core::{Lease, Policy, Quota, Source};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;

use super::{ask, drain, until_all_is_spent, until_leased};
use crate::support::{connected, patient};

async fn copies(server: &Redis) -> [RedisStore; 2] {
    let builder = patient(&server.url()).deny_cache(Duration::ZERO).seed(7);
    [connected(builder.clone()).await, connected(builder).await]
}

/// A limit per 400 days. A replica may hold part of it for as long.
fn leased(limit: u64, share: Lease) -> Policy {
    let window = Policy::MAX_WINDOW;
    let policy = Policy::sliding_window_log("p", Quota::new(limit, window)).unwrap();
    policy.with_lease(share.ttl(window)).unwrap()
}

#[tokio::test]
async fn copies_return_only_own_blocks() {
    let server = Redis::start();
    let [one, copy] = copies(&server).await;
    // Eight units and two units. Each is its store's first block.
    let (large, small) = (leased(1_000, Lease::of(1, 50)), leased(1_000, Lease::of(1, 500)));
    let mut admitted = until_leased(&one, &large).await.1 + until_leased(&copy, &small).await.1;
    copy.return_leases().await;
    let exact = Policy::new("p", large.quota(), large.kind()).unwrap();
    admitted += drain(&copy, &exact).await;
    // The units in the first store's block are still charged in Redis.
    let spent = drain(&one, &large).await;
    assert!(spent > 0);
    until_all_is_spent(&[(&copy, &small), (&one, &large)], admitted + spent, 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leasing_copies_never_exceed_limit() {
    let server = Redis::start();
    let policy = leased(20_000, Lease::of(1, 10));
    let mut tasks = tokio::task::JoinSet::new();
    let copies = copies(&server).await;
    for store in copies.clone() {
        let policy = policy.clone();
        tasks.spawn(async move {
            let (mut admitted, mut leased) = (0_u64, 0_u64);
            loop {
                let verdict = ask(&store, &policy, 1).await;
                if !verdict.is_admitted() {
                    return (admitted, leased);
                }
                admitted += 1;
                leased += u64::from(verdict.source() == Source::Lease);
                if admitted.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    let done = tasks.join_all().await;
    let (mut admitted, leased) =
        done.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(admitted <= 20_000 && leased > 1_000, "{admitted}, {leased}");
    // All units are available after all blocks are returned.
    for copy in &copies {
        copy.return_leases().await;
    }
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    admitted += drain(&copies[0], &exact).await;
    let stores = [(&copies[0], &policy), (&copies[1], &policy)];
    until_all_is_spent(&stores, admitted, 20_000).await;
}

/// Names contain Redis' time, so no two processes may get the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_have_distinct_times() {
    let server = Redis::start();
    let policy = Policy::fixed_window_counter("p", Quota::per_day(1_000_000)).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for store in copies(&server).await {
        let policy = policy.clone();
        tasks.spawn(async move {
            let mut times = HashSet::new();
            for _ in 0..2_000 {
                times.insert(ask(&store, &policy, 1).await.decided_at());
            }
            times
        });
    }
    let times = tasks.join_all().await;
    assert!(times[0].is_disjoint(&times[1]));
    assert_eq!(times.iter().map(HashSet::len).sum::<usize>(), 4_000);
}
