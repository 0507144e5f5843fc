//! A killed service's permits.

use std::process::Command;
use std::time::{Duration, Instant};

use tollgate::key::Key;
use tollgate::{Policy, RedisStore, StoreExt};
use tollgate_test_servers::{Redis, until_async};

/// Long enough for renewals on a busy machine.
const PERMIT_TTL: Duration = Duration::from_secs(6);

async fn left(store: &RedisStore, policy: &Policy) -> u64 {
    store.peek(policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining
}

async fn wait_for_remaining(store: &RedisStore, policy: &Policy, expected: u64) {
    let is_so = async || (left(store, policy).await == expected).then_some(());
    until_async(&format!("{expected} units remain"), Duration::from_secs(20), is_so).await;
}

#[tokio::test]
async fn permits_of_killed_process_expire() {
    let redis = Redis::start();
    let builder = RedisStore::builder(&redis.url()).unwrap();
    // Long enough for a machine that is busy with other tests.
    let store = builder.timeout(Duration::from_secs(10)).connect().unwrap();
    store.connected().await;
    let mut process = Command::new(env!("CARGO_BIN_EXE_holder"))
        .args([redis.url(), PERMIT_TTL.as_millis().to_string()])
        .spawn()
        .unwrap();
    let policy = Policy::concurrent_requests("at-once", 3, PERMIT_TTL).unwrap();
    wait_for_remaining(&store, &policy, 0).await;
    // The process is alive and renews its permits, so these outlast their time to live.
    let alive = Instant::now();
    while alive.elapsed() < PERMIT_TTL * 5 / 4 {
        assert_eq!(left(&store, &policy).await, 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let killed = Instant::now();
    let verdict = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    let lease = Duration::from(verdict.decisions()[0].reset_after);
    assert!(!lease.is_zero() && lease <= PERMIT_TTL, "{lease:?}");
    wait_for_remaining(&store, &policy, 3).await;
    assert!(killed.elapsed() >= lease, "{:?} of {lease:?}", killed.elapsed());
}
