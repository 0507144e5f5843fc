//! The store behind Sentinels while they replace the master.

use std::time::Duration;

use tollgate_core::{Key, Policy, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Sentinels;

use super::load::Load;

const TIMEOUT: Duration = Duration::from_secs(1);

async fn connect(sentinels: &Sentinels) -> (RedisStore, Policy) {
    let builder = RedisStore::builder(&sentinels.url()).expect("a URL");
    let store = builder.deny_cache(Duration::ZERO).timeout(TIMEOUT).connect().expect("settings");
    store.connected().await;
    (store, super::policy("p", 1_000_000))
}

/// The Sentinels make the old master close its connections. A client that reconnects finds a
/// replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn demoted_master_is_abandoned() {
    let sentinels = Sentinels::start();
    let (store, policy) = connect(&sentinels).await;
    let load = Load::begin(&store, std::slice::from_ref(&policy), &Key::GLOBAL, 16);
    tokio::task::block_in_place(|| {
        load.goes_on("requests reach the master");
        let old = sentinels.master();
        // On a busy machine the new master may seem down, and the Sentinels would replace it again.
        for sentinel in sentinels.sentinels() {
            let name = Sentinels::NAME;
            let set = ["SENTINEL", "SET", name, "down-after-milliseconds", "60000"];
            assert_eq!(sentinel.cmd(&set).error(), None);
        }
        let told = sentinels.sentinels()[0].cmd(&["SENTINEL", "FAILOVER", Sentinels::NAME]);
        assert_eq!(told.error(), None);
        let new = sentinels.wait_for_failover(old);
        sentinels.wait_until_follows(old);
        let calls = || sentinels.node(new).calls("evalsha");
        let before = calls();
        load.goes_on("requests reach the new master");
        assert!(calls() > before);
    });
    let tally = load.end().await;
    let left = store.peek(&policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining;
    // Charges that the old master accepted after its replacement are lost.
    assert!(left < policy.capacity() && policy.capacity() - left <= tally.admitted + tally.lost);
}
