//! A Cluster node fails, or its slots move to another node.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::sleep;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Cluster, Proxy, until_async};

use super::scene::{Scene, Told};
use crate::cluster::MINUTE;
use crate::cluster::load::Load;

/// One node's keys, and the other nodes' keys.
struct Shards {
    policy: Policy,
    own: Vec<Key>,
    others: Vec<Key>,
    /// One of the node's slots.
    slot: u16,
}

impl Shards {
    /// Finds the node that stores each probe key. No other client may write.
    async fn find(cluster: &Cluster, store: &RedisStore, node: usize) -> Self {
        let policy = Policy::sliding_window_log("probe", Quota::per_hour(1_000_000));
        let policy = policy.expect("builds");
        let (mut own, mut others) = (Vec::new(), Vec::new());
        let size = || cluster.node(node).cmd(&["DBSIZE"]).number();
        for id in 0..40_u32 {
            let key = Key::new(format!("probe {id}").as_bytes());
            let before = size();
            store.charge(&policy, &key, Cost::ONE).await.expect("all is well");
            if size() > before { own.push(key) } else { others.push(key) }
        }
        let names = cluster.node(node).cmd(&["KEYS", "*:probe"]);
        let slot = cluster.slot_of(names.list()[0].text());
        assert!(own.len() > 3 && others.len() > 10, "{} and {}", own.len(), others.len());
        Self { policy, own, others, slot }
    }

    /// Returns how many concurrent requests for these keys fail.
    async fn failures(&self, store: &RedisStore, keys: &[Key]) -> usize {
        let answers: Vec<_> =
            keys.iter().map(|key| store.charge(&self.policy, key, Cost::ONE)).collect();
        let mut failures = 0;
        for answer in answers {
            failures += usize::from(answer.await.is_err());
        }
        failures
    }
}

/// Breaks a master under load, and checks the requests for its keys and for other keys.
async fn assert_only_own_keys_fail(fault: fn(&Cluster), heal: fn(&Cluster)) {
    let cluster = Cluster::start();
    let scene = Scene::without_breaker(&cluster.url()).await;
    let shards = Shards::find(&cluster, scene.store(), 0).await;
    // No replica takes over before the test has checked both.
    let take_over = |may: bool| {
        let forbid = if may { "no" } else { "yes" };
        for replica in cluster.replicas_of(0) {
            let replica = cluster.node(replica);
            let set = replica.cmd(&["CONFIG", "SET", "cluster-replica-no-failover", forbid]);
            assert_eq!(set.error(), None);
        }
    };
    take_over(false);
    let load = scene.load_under_way().await;
    fault(&cluster);
    let mut well = 0;
    // A busy machine also answers requests for other nodes late, but not all the time.
    until_async("three rounds are well", MINUTE, async || {
        let others = shards.failures(scene.store(), &shards.others).await;
        let own = shards.failures(scene.store(), &shards.own).await;
        assert_eq!(own, shards.own.len(), "requests for the failed node");
        well += usize::from(others == 0);
        (well == 3).then_some(())
    })
    .await;
    take_over(true);
    let heir = block_in_place(|| cluster.wait_for_failover(shards.slot, 0));
    let all_pass = async || shards.failures(scene.store(), &shards.own).await == 0;
    scene.soon(&format!("node {heir} decides"), all_pass).await;
    heal(&cluster);
    block_in_place(|| cluster.wait_until_ok());
    let report = scene.recovers(load).await;
    // Only charges that were not replicated yet.
    assert!(report.held.lost < report.count(Told::Admitted) / 10, "{:?}", report.held);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_only_fails_its_keys() {
    assert_only_own_keys_fail(
        |cluster| cluster.node(0).kill(),
        |cluster| cluster.node(0).restart(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_node_only_fails_its_keys() {
    assert_only_own_keys_fail(|cluster| cluster.node(0).stop(), |cluster| cluster.node(0).cont())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_failover_keeps_all_charges() {
    let cluster = Cluster::start();
    let scene = Scene::without_breaker(&cluster.url()).await;
    let load = scene.load_under_way().await;
    block_in_place(|| cluster.failover(4));
    assert_eq!(scene.recovers(load).await.held.lost, 0);
}

/// A lost reply makes the store distrust its connection and open another. The calls on the old
/// connection have been executed, mostly with keys in several slots.
#[tokio::test(flavor = "multi_thread")]
async fn reconnect_repeats_no_cross_slot_call() {
    let cluster = Cluster::builder().masters(1).replicas(0).start();
    let node = cluster.node(0);
    let proxy = Proxy::start(node.address());
    node.configure("cluster-announce-port", &proxy.address().port().to_string());
    node.restart();
    block_in_place(|| cluster.wait_until_ok());
    let url = format!("redis-cluster://{}", proxy.address());
    let scene = Scene::without_breaker(&url).await;
    replies_are_lost(&scene, &proxy, || node.calls("evalsha")).await;
}

/// Loses replies several times. Calls that Redis has executed remain charged and are not repeated.
async fn replies_are_lost(scene: &Scene, proxy: &Proxy, calls: impl Fn() -> u64) {
    let load = scene.load();
    for _ in 0..5 {
        load.goes_on().await;
        lose_a_reply(proxy, &calls).await;
        proxy.pass();
        scene.until_up().await;
    }
    let held = scene.recovers(load).await.held;
    assert!(held.lost == 0 && !held.ghosts.is_empty(), "the fault did not happen: {held:?}");
}

/// Swallows replies until Redis has executed a call. A store that is connecting needs replies
/// before it sends a call, so they pass for a moment if no call arrives.
async fn lose_a_reply(proxy: &Proxy, calls: impl Fn() -> u64) {
    loop {
        let before = calls();
        proxy.swallow_replies();
        for _ in 0..500 {
            if calls() != before {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        proxy.pass();
        sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn moving_slot_keeps_its_counts() {
    const LIMIT: u64 = 1_000_000;
    let cluster = Cluster::builder().replicas(0).start();
    let scene = Scene::without_breaker(&cluster.url()).await;
    let hot = Policy::fixed_window_counter("hot", Quota::new(LIMIT, Policy::MAX_WINDOW));
    let hot = hot.expect("builds");
    let key = Key::new(b"hot");
    scene.store().charge(&hot, &key, Cost::ONE).await.expect("all is well");
    let find = |node: usize| {
        let names = cluster.node(node).cmd(&["KEYS", "*:hot"]);
        names.list().first().map(|name| cluster.slot_of(name.text()))
    };
    let slot = (0..3).find_map(find).expect("it was charged");
    let home = cluster.master_of(slot);

    let load = scene.load();
    let hot_load = Load::begin(scene.store(), std::slice::from_ref(&hot), &key, 16);
    for to in [(home + 1) % 3, (home + 2) % 3, home] {
        // Requests are served at each step: before a key has moved, when all keys have moved, and
        // afterwards.
        let migration = block_in_place(|| cluster.migration(slot, to));
        hot_load.goes_on("the slot is served");
        while block_in_place(|| migration.move_keys(1)) > 0 {}
        hot_load.goes_on("the slot is served");
        block_in_place(|| migration.finish());
        hot_load.goes_on("the slot is served");
    }
    let tally = hot_load.end().await;
    let left = scene.store().peek(&hot, &key).await.expect("all is well").decisions()[0].remaining;
    // One unit was charged to find the slot.
    tally.assert_charges_match(LIMIT - left - 1);
    assert!(tally.refused + tally.lost < tally.admitted / 4, "{tally:?}");
    assert_eq!(scene.recovers(load).await.held.lost, 0);
    assert_eq!(cluster.master_of(slot), home);
}
