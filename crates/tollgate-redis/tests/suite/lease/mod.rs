//! Leases over a real server: that no limit is exceeded, what lies unused, and what becomes of
//! blocks whose holder is gone.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

mod asleep;
mod beside;
mod bounds;
mod copies;
#[path = "../../../../tollgate-core/tests/suite/oracle.rs"]
#[expect(dead_code, reason = "it is that of the core, which asks more of it")]
mod oracle;
mod replicas;
mod told;
mod traces;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::{
    Algorithm, Cost, Key, LeakyMode, Lease, Policy, Quota, Refill, Resolution, Source, StoreExt,
    Verdict,
};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;

/// Policies that can be leased.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::FixedWindowCounter,
    Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
    Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth },
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket { refill: Refill::Greedy },
    Algorithm::LeakyBucket { mode: LeakyMode::Meter },
];

const TTL: u64 = 1_000_000;

/// Decades ahead of the server's own clock, by which keys expire, and at the start of a minute.
const START: u64 = 4_000_000_020_000_000;

/// A replica holds up to a fifth of the limit for a second.
fn policy(limit: u64, algorithm: Algorithm) -> Policy {
    let policy = Policy::new("p", Quota::per_minute(limit), algorithm).unwrap();
    policy.with_lease(Lease::of(1, 5)).unwrap()
}

/// A server, and the time of all stores there, moved by hand.
struct Scene {
    server: Redis,
    time: Arc<AtomicU64>,
}

impl Scene {
    fn start() -> Self {
        Self { server: Redis::start(), time: Arc::new(AtomicU64::new(START)) }
    }

    async fn store(&self) -> RedisStore {
        let builder = RedisStore::builder(&self.server.url()).unwrap();
        let builder = builder.timeout(Duration::from_secs(10)).time(Arc::clone(&self.time));
        let store = builder.connect().unwrap();
        tokio::time::timeout(Duration::from_secs(20), store.connected()).await.unwrap();
        store
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

/// Asks until an answer comes from a block, and says what that was and what was taken until
/// then.
async fn until_leased(store: &RedisStore, policy: &Policy) -> (Verdict, u64) {
    for asked in 1..=10_000 {
        let verdict = ask(store, policy, 1).await;
        assert!(verdict.is_admitted(), "the limit is far away");
        if verdict.source() == Source::Lease {
            return (verdict, asked);
        }
        tokio::task::yield_now().await;
    }
    panic!("nothing was leased");
}

/// Takes one unit after the other, and says how many there were.
async fn drain(store: &RedisStore, policy: &Policy) -> u64 {
    let mut admitted = 0;
    while ask(store, policy, 1).await.is_admitted() {
        admitted += 1;
    }
    admitted
}

/// Takes what is left until all units were spent. Some may be on their way to a store.
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
