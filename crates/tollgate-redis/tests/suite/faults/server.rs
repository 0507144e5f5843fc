//! The server itself fails.

use std::time::Duration;

use tokio::time::sleep;
use tollgate_test_servers::Redis;

use super::scene::{CALM, Held, OUTAGE, SOON, Scene, Told};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_costs_some_requests_their_time_and_then_none() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    redis.stop();
    let first = scene.next();
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    scene.policies_fail().await;
    // Once the timeout has passed, the requests until now are late.
    let last = scene.next();
    sleep(CALM).await;
    redis.cont();
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    let held = report.compare(&scene).await;
    // Redis finds them in its sockets when it goes on, and refuses them as late.
    assert!(held.lost == 0 && !held.has_ghosts(first..last), "{held:?}");
    scene.policies_decide().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_is_found_again() {
    let redis = Redis::builder().append_only().start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    redis.kill();
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    redis.restart();
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    assert_eq!(report.compare(&scene).await.lost, 0);
    scene.policies_decide().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_forgets_is_charged_no_second_time() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    sleep(CALM).await;
    redis.restart();
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    // Earlier charges are lost, and later charges are not.
    let Held { lost, .. } = report.compare(&scene).await;
    assert!(lost > 0 && lost < report.count(Told::Admitted), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_closed_costs_what_was_under_way() {
    let redis = Redis::start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load();
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        sleep(CALM / 2).await;
        redis.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
        // The death of the connection may not have been seen yet.
        while redis.cmd(&["CLIENT", "LIST", "TYPE", "NORMAL"]).text().lines().count() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
        slowest = slowest.max(scene.until_up().await);
    }
    sleep(CALM).await;
    let report = load.end().await;
    report.print(slowest);
    assert!(slowest < SOON, "{slowest:?}");
    assert_eq!(report.compare(&scene).await.lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_is_forgotten_in_a_storm_is_sent_again_and_nobody_notices() {
    let redis = Redis::start();
    let scene = Scene::patient(&redis.url()).await;
    let load = scene.load();
    for _ in 0..20 {
        sleep(CALM / 10).await;
        redis.cmd(&["SCRIPT", "FLUSH"]);
    }
    let report = load.end().await;
    report.print(Duration::ZERO);
    assert_eq!([Told::NotCharged, Told::MaybeCharged].map(|told| report.count(told)), [0, 0]);
    assert_eq!(report.compare(&scene).await, Held::default());
    assert!(redis.calls("eval") >= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_starts_without_redis_and_finds_it_when_it_comes() {
    let redis = Redis::start();
    redis.kill();
    let scene = Scene::unconnected(&redis.url());
    let load = scene.load();
    scene.policies_fail().await;
    // Once the timeout has passed, the requests until now are late.
    let last = scene.next();
    sleep(CALM).await;
    redis.restart();
    let recovery = scene.until_up().await;
    sleep(CALM).await;
    let report = load.end().await;
    report.print(recovery);
    assert!(recovery < SOON, "{recovery:?}");
    // No call goes out without a deadline that Redis keeps: it is asked for its time first.
    let held = report.compare(&scene).await;
    assert!(held.lost == 0 && !held.has_ghosts(0..last), "{held:?}");
    scene.policies_decide().await;
}
