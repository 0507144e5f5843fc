//! Redis is there and refuses.

use std::time::Duration;

use tokio::time::sleep;
use tollgate_test_servers::{Redis, until};

use super::scene::{CALM, Held, Report, SOON, Scene, Told};

/// Every refusal says that nothing was charged, and nothing was.
async fn refused(report: &Report, scene: &Scene) {
    assert!(report.count(Told::NotCharged) > 0, "the fault did not happen");
    assert_eq!(report.count(Told::MaybeCharged), 0);
    assert_eq!(report.compare(scene).await, Held::default());
    scene.policies_decide().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_charges_nothing() {
    let redis = Redis::builder().max_memory("100mb", "noeviction").start();
    let scene = Scene::patient(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    scene.policies_fail().await;
    redis.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    refused(&report, &scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_become_a_replica_charges_nothing() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    // Of nobody: it keeps what it has.
    redis.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    scene.policies_fail().await;
    redis.cmd(&["REPLICAOF", "NO", "ONE"]);
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    // It also asks for a new connection, which costs whoever is under way on the old one.
    assert!(report.count(Told::NotCharged) > 0, "the fault did not happen");
    assert_eq!(report.compare(&scene).await.lost, 0);
    scene.policies_decide().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_is_waited_for() {
    let redis = Redis::builder().append_only().start();
    for key in 0..400 {
        redis.cmd(&["SET", &format!("filler:{key}"), &"x".repeat(1024)]);
    }
    redis.cmd(&["BGREWRITEAOF"]);
    until("the log is rewritten", Duration::from_secs(10), || {
        let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        fields.iter().all(|field| redis.info(field) == "0").then_some(())
    });
    // A second of loading or more, during which it answers that it loads.
    redis.configure("key-load-delay", "2000");
    redis.configure("loading-process-events-interval-bytes", "1024");
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    redis.launch();
    scene.policies_fail().await;
    until("it says that it loads", Duration::from_secs(10), || {
        redis.try_cmd(&["GET", "filler:0"]).ok()?.error().map(drop)
    });
    scene.policies_fail().await;
    redis.wait_until_ready();
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    assert_eq!(report.compare(&scene).await.lost, 0);
    scene.policies_decide().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_changes_locks_out_until_it_is_right_again() {
    let redis = Redis::builder().password("right").start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    // Stays logged in while the password is another.
    let mut admin = redis.connect().expect("a server");
    admin.cmd(&["CONFIG", "SET", "requirepass", "other"]);
    admin.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
    scene.policies_fail().await;
    sleep(CALM).await;
    scene.policies_fail().await;
    admin.cmd(&["CONFIG", "SET", "requirepass", "right"]);
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    assert_eq!(report.compare(&scene).await.lost, 0);
    scene.policies_decide().await;
}
