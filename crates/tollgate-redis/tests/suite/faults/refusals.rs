//! Redis is running and rejects requests.

use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::sleep;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota};
use tollgate_redis::protocol::{Batch, KeyedCharge, ScriptAnswer};
use tollgate_test_servers::{Redis, skip, until};

use super::scene::{Held, OUTAGE, Scene, TASKS, Told};
use crate::support::{ScriptClient, Server, Value};

const SECONDS: Duration = Duration::from_secs(10);

/// Every rejection reports that the request was not charged, which is true.
async fn assert_uncharged_between(
    redis: Redis,
    refuse: impl FnOnce(&Redis),
    heal: impl FnOnce(&Redis),
) {
    let scene = Scene::patient(&redis.url()).await;
    let load = scene.load_under_way().await;
    refuse(&redis);
    scene.policies_fail().await;
    heal(&redis);
    let report = scene.recovers(load).await;
    assert!(report.count(Told::NotCharged) > 0, "the fault did not happen");
    assert_eq!(report.count(Told::MaybeCharged), 0);
    assert_eq!(report.held, Held::default());
}

fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.cmd(&["CONFIG", "SET", name, value]).error(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_charges_no_request() {
    let redis = Redis::builder().max_memory("100mb", "noeviction").start();
    let refuse = |redis: &Redis| set(redis, "maxmemory", "1");
    assert_uncharged_between(redis, refuse, |redis| set(redis, "maxmemory", "100mb")).await;
}

/// Requests that share a call, on the plain path and on the general path.
#[test]
fn full_memory_only_fails_charges() {
    let server = Server::start();
    let mut client = server.connect();
    let quota = Quota::per_day(1);
    for policy in [Policy::token_bucket("p", quota), Policy::sliding_window_log("p", quota)] {
        let policy = policy.expect("builds");
        let line = |key, cost| KeyedCharge::new(key, &policy, Cost::new(cost));
        let call = |client: &mut ScriptClient, lines: &[KeyedCharge<'_>]| {
            let mut batch = Batch::new(1);
            lines.iter().for_each(|line| batch.decide(&[*line]).expect("room"));
            client.call(&batch, None).rows
        };
        let lines = [line(b"full", 1), line(b"a", 1), line(b"a", 1), line(b"b", 0)];
        let [ScriptAnswer::Verdict(first, _)] = &call(&mut client, &lines[..1])[..] else {
            panic!()
        };
        assert!(first.is_admitted());
        client.run(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
        let rows = call(&mut client, &lines);
        let [
            ScriptAnswer::Verdict(full, _),
            ScriptAnswer::Unmade,
            ScriptAnswer::Verdict(second, _),
            ScriptAnswer::Verdict(none, _),
        ] = &rows[..]
        else {
            panic!("{rows:?}")
        };
        assert!(!full.is_admitted() && !second.is_admitted() && none.is_admitted());
        client.run(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
        assert_eq!(client.run(&[b"EXISTS", b"a"]), Value::Number(0));
        client.run(&[b"FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsaved_server_charges_no_request() {
    let refuse = |redis: &Redis| {
        // A file cannot replace a folder.
        std::fs::create_dir(redis.folder().join("dump.rdb")).expect("a full disk?");
        set(redis, "save", "3600 1");
        redis.cmd(&["BGSAVE"]);
        until("saving fails", SECONDS, || {
            (redis.info("rdb_last_bgsave_status") == "err").then_some(())
        });
    };
    assert_uncharged_between(Redis::start(), refuse, |redis| set(redis, "save", "")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_replicas_charge_no_request() {
    let redis = Redis::start();
    if !redis.can_hold_back_scripts() {
        return skip("before Redis 6.2, `min-replicas-to-write` does not hold for scripts");
    }
    let needs = |count| move |redis: &Redis| set(redis, "min-replicas-to-write", count);
    assert_uncharged_between(redis, needs("1"), needs("0")).await;
}

/// It might be a master that was replaced, and only a new connection finds the new master.
#[tokio::test(flavor = "multi_thread")]
async fn demoted_server_forces_reconnect() {
    let redis = Redis::start();
    let scene = Scene::without_breaker(&redis.url()).await;
    let connections = || scene.store().stats().connections;
    let load = scene.load_under_way().await;
    let before = connections();
    redis.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    block_in_place(|| {
        until("another connection", SECONDS, || (connections() > before).then_some(()));
    });
    redis.cmd(&["REPLICAOF", "NO", "ONE"]);
    let report = scene.recovers(load).await;
    assert!(report.count(Told::NotCharged) > 0, "the fault did not happen");
    // A closed connection loses its calls in flight.
    let most = TASKS * usize::try_from(connections() - before).expect("a few");
    assert!(report.count(Told::MaybeCharged) <= most, "{most}");
    assert_eq!(report.held.lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_server_recovers() {
    let redis = Redis::builder().append_only().start();
    redis.fill_for_a_slow_start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    redis.launch();
    scene.policies_fail().await;
    until("it says that it loads", SECONDS, || {
        redis.try_cmd(&["GET", "filler:0"]).ok()?.error().map(drop)
    });
    scene.policies_fail().await;
    redis.wait_until_ready();
    assert_eq!(scene.recovers(load).await.held.lost, 0);
}

/// Another client's script runs for too long. Redis then rejects all commands, even the time query
/// that would confirm a rejection.
#[tokio::test(flavor = "multi_thread")]
async fn busy_server_charges_no_request() {
    let redis = Redis::start();
    set(&redis, "lua-time-limit", "1");
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    let mut other = redis.connect().expect("a connection");
    other.say(&["EVAL", "while true do end", "0"]);
    other.send().expect("a server");
    scene.policies_fail().await;
    sleep(OUTAGE).await;
    scene.policies_fail().await;
    assert_eq!(redis.cmd(&["SCRIPT", "KILL"]).error(), None);
    let report = scene.recovers(load).await;
    assert_eq!(report.held, Held::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_password_fails_until_restored() {
    let redis = Redis::builder().password("right").start();
    let scene = Scene::new(&redis.url()).await;
    let load = scene.load_under_way().await;
    // Remains logged in while the password is wrong.
    let mut admin = redis.connect().expect("a server");
    admin.cmd(&["CONFIG", "SET", "requirepass", "other"]);
    admin.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
    scene.policies_fail().await;
    scene.timeout_passes().await;
    scene.policies_fail().await;
    admin.cmd(&["CONFIG", "SET", "requirepass", "right"]);
    assert_eq!(scene.recovers(load).await.held.lost, 0);
}
