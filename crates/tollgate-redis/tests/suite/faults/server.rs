//! The server itself fails.

use tokio::time::sleep;
use tollgate_test_servers::Redis;

use super::scene::{Held, OUTAGE, Scene, Told};

#[tokio::test(flavor = "multi_thread")]
async fn paused_server_rejects_late_calls() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    redis.stop();
    let first = scene.next();
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    scene.policies_fail().await;
    let last = scene.next();
    scene.timeout_passes().await;
    redis.cont();
    let Held { lost, ghosts } = scene.recovers(load).await.held;
    // Redis finds these calls in its sockets when it continues, and rejects them as late.
    assert!(lost == 0 && !ghosts.iter().any(|id| (first..last).contains(id)), "{ghosts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_script_fails_no_request() {
    let redis = Redis::start();
    let scene = Scene::patient(&redis.url()).await;
    let load = scene.load();
    let before = redis.calls("eval");
    for _ in 0..20 {
        redis.cmd(&["SCRIPT", "FLUSH"]);
        load.goes_on().await;
    }
    let report = load.end(&scene).await;
    assert_eq!([Told::NotCharged, Told::MaybeCharged].map(|told| report.count(told)), [0, 0]);
    assert_eq!(report.held, Held::default());
    assert!(redis.calls("eval") >= before + 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_may_start_before_redis() {
    let redis = Redis::start();
    redis.kill();
    let scene = Scene::unconnected(&redis.url());
    let load = scene.load();
    scene.policies_fail().await;
    let last = scene.next();
    scene.timeout_passes().await;
    redis.restart();
    // The store queries the time first, so every call has a deadline that Redis enforces.
    let Held { lost, ghosts } = scene.recovers(load).await.held;
    assert!(lost == 0 && ghosts.iter().all(|id| *id >= last), "{ghosts:?}");
}
