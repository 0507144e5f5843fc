//! Leases with a real server: no limit is exceeded, how many units remain unused, and what happens
//! to blocks when their holder disappears.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

mod asleep;
mod beside;
mod bounds;
mod copies;
mod replicas;
mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::{Algorithm, Cost, Key, Lease, Policy, Quota, Source, StoreExt, Verdict};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;

use crate::support::{connected, modes, patient};

/// The algorithms that support leases.
const ALGORITHMS: [Algorithm; 6] = {
    let [fixed, exact, thousandth, sliding, greedy, _interval, meter, ..] = modes(0);
    [fixed, exact, thousandth, sliding, greedy, meter]
};

const TTL: u64 = 1_000_000;

/// Decades ahead of the server's own clock, by which keys expire, and at the start of a minute.
const START: u64 = 4_000_000_020_000_000;

/// A policy that allows a replica to lease a fifth for one second.
fn policy(limit: u64, algorithm: Algorithm) -> Policy {
    let policy = Policy::new("p", Quota::per_minute(limit), algorithm).unwrap();
    policy.with_lease(Lease::of(1, 5)).unwrap()
}

/// A server, and a manual clock for all its stores.
struct Scene {
    server: Redis,
    time: Arc<AtomicU64>,
}

impl Scene {
    fn start() -> Self {
        Self { server: Redis::start(), time: Arc::new(AtomicU64::new(START)) }
    }

    async fn store(&self) -> RedisStore {
        connected(patient(&self.server.url()).time(Arc::clone(&self.time))).await
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::SeqCst)
    }

    fn set(&self, now: u64) {
        self.time.store(now, Ordering::SeqCst);
    }
}

async fn ask(store: &RedisStore, policy: &Policy, cost: u64) -> Verdict {
    store.charge(policy, &Key::GLOBAL, Cost::new(cost)).await.unwrap()
}

/// Sends requests until a block answers. Returns that verdict, and the units charged up to then.
async fn until_leased(store: &RedisStore, policy: &Policy) -> (Verdict, u64) {
    for asked in 1..=10_000 {
        let verdict = ask(store, policy, 1).await;
        assert!(verdict.is_admitted(), "the limit is far away");
        if verdict.source() == Source::Lease {
            return (verdict, asked);
        }
        tokio::task::yield_now().await;
    }
    panic!("no block was leased");
}

/// Charges all units, the last units individually, and returns their number.
async fn drain(store: &RedisStore, policy: &Policy) -> u64 {
    let mut admitted = 0;
    for cost in [50, 1] {
        while ask(store, policy, cost).await.is_admitted() {
            admitted += cost;
        }
    }
    admitted
}

/// Charges the remaining units until all are spent. Some may be on their way to a store.
async fn until_all_is_spent(stores: &[(&RedisStore, &Policy)], mut admitted: u64, limit: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while admitted < limit {
        assert!(Instant::now() < until, "{admitted} of {limit}");
        for (store, policy) in stores {
            admitted += drain(store, policy).await;
        }
        tokio::task::yield_now().await;
    }
    for (store, policy) in stores {
        admitted += drain(store, policy).await;
    }
    assert_eq!(admitted, limit);
}
