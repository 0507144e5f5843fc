//! Many replicas meet a new server at the same time.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Redis, until_async};

use crate::cluster::MINUTE;

const REPLICAS: usize = 40;
/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

async fn replicas(redis: &Redis) -> Vec<RedisStore> {
    let builder = || RedisStore::builder(&redis.url()).expect("a URL").timeout(TIMEOUT);
    let stores: Vec<_> = (0..REPLICAS).map(|_| builder().connect().expect("a store")).collect();
    until_checked(redis).await;
    stores
}

/// Waits until all replicas have checked the server since its start.
async fn until_checked(redis: &Redis) {
    let checks = || redis.calls("pexpireat");
    until_async("checks", MINUTE, async || (checks() >= REPLICAS as u64).then_some(())).await;
}

/// Each replica sends a request at the same time. All must be answered.
async fn request(stores: &[RedisStore]) {
    let policy = Policy::fixed_window_counter("p", Quota::new(1_000_000, Policy::MAX_WINDOW));
    let policy = policy.expect("builds");
    let requests = stores.iter().map(|store| {
        let (store, policy) = (store.clone(), policy.clone());
        async move { store.charge(&policy, &Key::GLOBAL, Cost::ONE).await.expect("an answer") }
    });
    requests.collect::<JoinSet<_>>().join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn few_replicas_load_the_script() {
    const ROUNDS: u64 = 5;
    let redis = Redis::start();
    let stores = replicas(&redis).await;
    let before = redis.calls("eval");
    for _ in 0..ROUNDS {
        redis.cmd(&["SCRIPT", "FLUSH"]);
        request(&stores).await;
    }
    let loads = redis.calls("eval") - before;
    println!("{loads} loads");
    assert!((ROUNDS..=ROUNDS * REPLICAS as u64 / 4).contains(&loads), "{loads}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_receives_few_commands() {
    let redis = Redis::start();
    let stores = replicas(&redis).await;
    redis.restart();
    until_checked(&redis).await;
    request(&stores).await;
    let commands = redis.info("total_commands_processed").parse::<u64>().expect("a number");
    // Without `INFO`, with which this test polls, too.
    let commands = commands - redis.calls("info");
    println!("{commands} commands");
    // The client's setup, the check, the request, and the commands in their scripts.
    assert!(commands <= 28 * REPLICAS as u64, "{commands}");
    assert!(redis.calls("eval") <= REPLICAS as u64 / 4, "{}", redis.calls("eval"));
}
