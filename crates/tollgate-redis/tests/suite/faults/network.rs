//! The network between the store and the server fails.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::sleep;
use tollgate_test_servers::{Cluster, Proxy, Redis};

use super::scene::{OUTAGE, Scene, Told};

#[tokio::test(flavor = "multi_thread")]
async fn black_hole_forces_reconnect() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address());
    let scene = Scene::new(&proxy.url()).await;
    let load = scene.load_under_way().await;
    proxy.black_hole();
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    scene.policies_fail().await;
    proxy.pass();
    let report = scene.recovers(load).await;
    assert_eq!(report.held.lost, 0);
    // When the black hole opened, each connection may have had a call's reply in transit.
    assert!(report.count(Told::MaybeCharged) > report.held.ghosts.len());
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
