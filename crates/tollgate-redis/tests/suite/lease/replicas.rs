//! Replicas in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::{Cost, Key, Lease, Policy, Quota, Source, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Proxy, Redis, until_async};

use super::{ask, until_leased};

async fn connected(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).unwrap().timeout(Duration::from_secs(10));
    let store = builder.connect().unwrap();
    tokio::time::timeout(Duration::from_secs(20), store.connected()).await.unwrap();
    store
}

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
        let store = connected(&server.url()).await;
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
    let store = connected(&server.url()).await;
    let (_, taken) = until_leased(&store, &policy).await;
    // No more requests arrive, so the block is returned after three seconds.
    let other = connected(&server.url()).await;
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    until_async("the block is returned", Duration::from_secs(15), async || {
        let left = other.peek(&exact, &Key::GLOBAL).await.unwrap().decisions()[0].remaining;
        (left == 10_000 - taken).then_some(())
    })
    .await;
}

/// Lost requests for blocks, lost grants and lost reports count as spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lossy_network_never_exceeds_limit() {
    const LIMIT: u64 = 60_000;
    let server = Redis::start();
    let policy = daily(LIMIT);
    let proxies = [(); 3].map(|()| Proxy::start(server.address()));
    let mut tasks = tokio::task::JoinSet::new();
    let (is_over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for proxy in &proxies {
        let builder =
            RedisStore::builder(&proxy.url()).unwrap().timeout(Duration::from_millis(100));
        let store = builder.connect().unwrap();
        for _ in 0..4 {
            let (store, policy) = (store.clone(), policy.clone());
            let (is_over, seen) = (Arc::clone(&is_over), Arc::clone(&seen));
            tasks.spawn(async move {
                let mut admitted = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let asked = store.charge(&policy, &Key::GLOBAL, Cost::ONE).await;
                    if asked.is_ok_and(|verdict| verdict.is_admitted()) {
                        admitted += 1;
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    // Slow enough that the limit lasts for the test.
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
                admitted
            });
        }
    }
    let mut rng = fastrand::Rng::with_seed(tollgate_store_tests::seed());
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        let proxy = &proxies[rng.usize(..3)];
        match rng.u8(..4) {
            0 => proxy.swallow_replies(),
            1 => proxy.black_hole(),
            2 => proxy.cut(),
            _ => proxy.pass(),
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(10..150))).await;
    }
    proxies.iter().for_each(Proxy::pass);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) || seen.load(Ordering::Relaxed) <= 1_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "{seen:?} were admitted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut admitted: u64 = tasks.join_all().await.into_iter().sum();
    // A replica with a good connection charges the rest.
    let store = connected(&server.url()).await;
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    for cost in [1_000, 30, 1] {
        while ask(&store, &exact, cost).await.is_admitted() {
            admitted += cost;
        }
    }
    assert!(admitted <= LIMIT, "{admitted}");
}

/// A block can be spent until it expires. After that, only Redis' decisions admit requests.
#[tokio::test]
async fn disconnected_replica_only_spends_its_block() {
    let server = Redis::start();
    let proxy = Proxy::start(server.address());
    let builder = RedisStore::builder(&proxy.url()).unwrap().timeout(Duration::from_millis(100));
    let store = builder.connect().unwrap();
    store.connected().await;
    let policy = daily(100_000);
    loop {
        let verdict = store.charge(&policy, &Key::GLOBAL, Cost::ONE);
        if verdict.await.is_ok_and(|verdict| verdict.source() == Source::Lease) {
            break;
        }
    }
    proxy.black_hole();
    let start = Instant::now();
    let mut spent = 0;
    loop {
        let verdict = store.charge(&policy, &Key::GLOBAL, Cost::ONE);
        match verdict.await {
            Ok(verdict) => {
                assert_eq!(verdict.source(), Source::Lease);
                spent += 1;
            }
            Err(_) => break,
        }
    }
    assert!(spent <= 10_000 && start.elapsed() < Duration::from_secs(5), "{spent}");
    drop(server);
}
