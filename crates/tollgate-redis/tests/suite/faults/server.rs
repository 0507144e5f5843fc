//! The server itself fails.

use tokio::time::sleep;
use tollgate_test_servers::{Redis, until_async};

use super::scene::{Held, OUTAGE, Scene, Told};
use crate::cluster::MINUTE;

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
async fn killed_server_recovers() {
    let redis = Redis::builder().append_only().start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    redis.kill();
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    redis.restart();
    assert_eq!(scene.recovers(load).await.held.lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_never_charges_twice() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    redis.restart();
    // Earlier charges are lost, and later charges are not.
    let report = scene.recovers(load).await;
    let lost = report.held.lost;
    assert!(lost > 0 && lost < report.count(Told::Admitted), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connection_only_loses_its_calls() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    for _ in 0..5 {
        load.goes_on().await;
        redis.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
        // The store may not have noticed yet that its connection was closed.
        until_async("another connection", MINUTE, async || {
            let list = redis.cmd(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
            (list.text().lines().count() >= 2).then_some(())
        })
        .await;
        scene.until_up().await;
    }
    assert_eq!(scene.recovers(load).await.held.lost, 0);
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
