//! The network between the store and the server fails.

use tokio::time::sleep;
use tollgate_test_servers::{Proxy, Redis};

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
