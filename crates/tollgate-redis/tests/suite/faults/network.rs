//! The network between the store and the server fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Flow, Proxy, Redis};

use super::scene::{Held, OUTAGE, Scene, Told};

fn pair() -> (Redis, Proxy) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address());
    (redis, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connection_repeats_no_call() {
    let (redis, proxy) = pair();
    let scene = Scene::new(&proxy.url()).await;
    replies_are_lost(&scene, &proxy, || redis.calls("evalsha"), Proxy::cut).await;
}

/// A lost reply makes the store distrust its connection and open another. Calls that were written
/// to the old connection have been executed, and the client reports them as failed writes.
#[tokio::test(flavor = "multi_thread")]
async fn reconnect_makes_calls_maybe_charged() {
    let (redis, proxy) = pair();
    let scene = Scene::without_breaker(&proxy.url()).await;
    replies_are_lost(&scene, &proxy, || redis.calls("evalsha"), |_| ()).await;
}

/// Loses replies several times, and each time calls `after` with the proxy. Calls that Redis has
/// executed remain charged and are not repeated.
pub(super) async fn replies_are_lost(
    scene: &Scene,
    proxy: &Proxy,
    calls: impl Fn() -> u64,
    after: fn(&Proxy),
) {
    let load = scene.load();
    for _ in 0..5 {
        load.goes_on().await;
        lose_a_reply(proxy, &calls).await;
        after(proxy);
        proxy.pass();
        scene.until_up().await;
    }
    let held = scene.recovers(load).await.held;
    assert!(held.lost == 0 && !held.ghosts.is_empty(), "the fault did not happen: {held:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn black_hole_forces_reconnect() {
    let (_redis, proxy) = pair();
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

#[tokio::test(flavor = "multi_thread")]
async fn delayed_requests_are_rejected_as_late() {
    let (_redis, proxy) = pair();
    let scene = Scene::new(&proxy.url()).await;
    let load = scene.load_under_way().await;
    proxy.flows(Flow::Hold, Flow::Pass);
    let first = scene.next();
    scene.policies_fail().await;
    let last = scene.next();
    scene.timeout_passes().await;
    proxy.pass();
    let report = scene.recovers(load).await;
    assert!(report.count(Told::MaybeCharged) > 0, "the fault did not happen");
    let Held { lost, ghosts } = report.held;
    assert!(lost == 0 && !ghosts.iter().any(|id| (first..last).contains(id)), "{ghosts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn late_replies_never_charge_twice() {
    // Sometimes only the scene's own request is delayed, and the load is shed.
    for _ in 0..8 {
        let (_redis, proxy) = pair();
        let scene = Scene::new(&proxy.url()).await;
        let load = scene.load_under_way().await;
        proxy.delay(Duration::from_millis(200));
        scene.policies_fail().await;
        proxy.pass();
        let held = scene.recovers(load).await.held;
        assert_eq!(held.lost, 0, "{held:?}");
        if !held.ghosts.is_empty() {
            return;
        }
    }
    panic!("no charge was left behind");
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
async fn broken_connections_never_exceed_limit() {
    const LIMIT: u64 = 300;
    let (redis, proxy) = pair();
    // Calls must end because of the cuts, and not because the machine is slow.
    let builder = RedisStore::builder(&proxy.url()).expect("a URL");
    let store = builder.timeout(Duration::from_secs(10)).connect().expect("a store");
    store.connected().await;
    let policy = Policy::sliding_window_log("all", Quota::per_hour(LIMIT)).expect("builds");
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let (store, policy, admitted) = (store.clone(), policy.clone(), Arc::clone(&admitted));
        tasks.spawn(async move {
            let mut unknown = 0;
            loop {
                match store.charge(&policy, &Key::GLOBAL, Cost::ONE).await {
                    Ok(verdict) if verdict.is_admitted() => {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    // All units are used up by now, regardless of the failures.
                    Ok(_) => return unknown,
                    Err(error) => unknown += u64::from(error.may_have_charged()),
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    let mut cuts = 0;
    let breaking = async {
        loop {
            // Requests continue before each cut, and Redis executes a call with a lost reply.
            let before = admitted.load(Ordering::Relaxed);
            while admitted.load(Ordering::Relaxed) < before + 10 {
                sleep(Duration::from_millis(1)).await;
            }
            lose_a_reply(&proxy, || redis.calls("evalsha")).await;
            proxy.cut();
            proxy.pass();
            cuts += 1;
        }
    };
    let unknown: u64 = tokio::select! {
        unknown = tasks.join_all() => unknown.into_iter().sum(),
        () = breaking => unreachable!(),
    };
    let admitted = admitted.load(Ordering::Relaxed);
    println!("{admitted} of {LIMIT} were admitted, {unknown} may have been; {cuts} cuts");
    assert!(unknown > 0, "the fault did not happen");
    assert!(admitted <= LIMIT);
    // Requests with an unknown result may have been charged, which bounds the missing units.
    assert!(admitted + unknown >= LIMIT, "{admitted} and {unknown}");
}
