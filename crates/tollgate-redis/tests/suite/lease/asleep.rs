//! A machine that is suspended: its timers stop, but Redis' clock does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{Policy, Quota, Source};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;

use super::{ALGORITHMS, TTL, ask, policy, until_leased};
use crate::support::{connected, patient};

/// Returns a store with a manual clock. Timers and Redis' clock run normally.
async fn store(server: &Redis) -> (RedisStore, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(7_000_000));
    let builder = patient(&server.url()).deny_cache(Duration::from_secs(60));
    (connected(builder.clock(Arc::clone(&clock))).await, clock)
}

#[tokio::test]
async fn suspension_expires_blocks() {
    let server = Redis::start();
    let (store, clock) = store(&server).await;
    for algorithm in ALGORITHMS {
        let base = policy(6_000, algorithm);
        let policy = Policy::new(format!("{algorithm:?}"), base.quota(), algorithm).unwrap();
        let policy = policy.with_lease(base.lease().unwrap()).unwrap();
        for sleep in [TTL, 3_600_000_000] {
            until_leased(&store, &policy).await;
            assert_eq!(ask(&store, &policy, 1).await.source(), Source::Lease, "{algorithm}");
            clock.fetch_add(sleep, Ordering::SeqCst);
            let awake = ask(&store, &policy, 1).await;
            assert_eq!(awake.source(), Source::Store, "{algorithm} after {sleep}");
        }
    }
}

#[tokio::test]
async fn suspension_expires_remembered_denials() {
    let server = Redis::start();
    let (store, clock) = store(&server).await;
    for algorithm in ALGORITHMS {
        let policy = Policy::new(format!("{algorithm:?}"), Quota::per_day(3), algorithm).unwrap();
        while ask(&store, &policy, 1).await.is_admitted() {}
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Cache, "{algorithm}");
        clock.fetch_add(60_000_000, Ordering::SeqCst);
        assert_eq!(ask(&store, &policy, 1).await.source(), Source::Store, "{algorithm}");
    }
}
