//! Addresses, logins, and reports about servers.

use std::process::Command;
use std::time::{Duration, Instant};

use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
use tollgate_redis::{ConnectError, RedisReport, RedisStore, RedisWarning};
use tollgate_test_servers::{Redis, until_async};

use super::{charge, connected, patient, policy};

/// No step takes this long in a passing test.
const PATIENCE: Duration = Duration::from_secs(20);

async fn report(store: &RedisStore) -> RedisReport {
    until_async("the server has been checked", PATIENCE, async || {
        Some(store.reports().remove(0)).filter(|report| *report != RedisReport::default())
    })
    .await
}

#[tokio::test]
async fn socket_and_tcp_share_limits() {
    let server = Redis::builder().password("s3cret").databases(4).start();
    let policy = policy(10);
    let socket = server.socket_url().replace("://", "://:s3cret@localhost");
    for (taken, url) in [server.url(), socket].into_iter().enumerate() {
        let store = connected(patient(&url)).await;
        let verdict = charge(&store, &policy, "k", 1).await;
        assert_eq!(verdict.decisions()[0].remaining, 9 - taken as u64, "{url}");
    }
    // Another database has separate limits.
    let store = connected(patient(&format!("{}/3", server.url()))).await;
    assert_eq!(charge(&store, &policy, "k", 1).await.decisions()[0].remaining, 9);
}

#[tokio::test]
async fn tls_verifies_the_authority() {
    let server = Redis::builder().tls().start();
    let authority = std::fs::read(server.authority()).unwrap();
    let store = connected(patient(&server.url()).certificate_authorities(authority)).await;
    assert!(charge(&store, &policy(1), "k", 1).await.is_admitted());

    // The system trusts other certificates, or none.
    match RedisStore::builder(&server.url()).unwrap().connect() {
        Err(ConnectError::Tls(_)) => {}
        Ok(store) => {
            let error = store.charge(&policy(1), &Key::GLOBAL, Cost::ONE).await.unwrap_err();
            assert!(!error.may_have_charged() || error.is_outage(), "{error}");
            assert!(!store.is_connected());
        }
        Err(other) => panic!("{other}"),
    }
    let nonsense = RedisStore::builder(&server.url()).unwrap().certificate_authorities("nonsense");
    assert!(matches!(nonsense.connect(), Err(ConnectError::Tls(_))));
}

#[tokio::test]
async fn warnings_name_harmful_settings() {
    let rights = "~tollgate:* +@all -pexpireat -set";
    let server = Redis::builder()
        .user("limiter", "s3cret", rights)
        .max_memory("100mb", "allkeys-lru")
        .start();
    let store = connected(patient(&server.url_of("limiter", "s3cret"))).await;
    let report = report(&store).await;
    assert!(report.version.is_some_and(|version| version.contains('.')));
    assert_eq!(report.maxmemory_policy.as_deref(), Some("allkeys-lru"));
    let [RedisWarning::Eviction(_), RedisWarning::Rights(_)] = &report.warnings[..] else {
        panic!("{:?}", report.warnings);
    };
    // The script may have written before it reached the forbidden command.
    let error = store.charge(&policy(1), &Key::GLOBAL, Cost::ONE).await.unwrap_err();
    assert!(error.is_outage() && error.may_have_charged(), "{error}");
}

/// A script without a permission only fails after some of its writes.
#[tokio::test]
async fn missing_right_may_have_charged() {
    let rights = "~tollgate:* +@all -pexpireat";
    let server = Redis::builder().user("limiter", "s3cret", rights).start();
    let url = server.url_of("limiter", "s3cret");
    let store = connected(patient(&url)).await;
    let log = Policy::sliding_window_log("log", Quota::per_day(500)).unwrap();
    let key = Key::from("k");
    let (mut admitted, mut maybe, mut refused) = (0, 0, Vec::new());
    // A long log is written in place, and its expiry is set after that.
    for _ in 0..400 {
        match store.charge(&log, &key, Cost::ONE).await {
            Ok(verdict) => admitted += u64::from(verdict.is_admitted()),
            Err(error) if error.may_have_charged() => maybe += 1,
            Err(error) => refused.push(error),
        }
    }
    let left = store.peek(&log, &key).await.unwrap().decisions()[0].remaining;
    assert!(admitted + maybe >= 500 - left, "{admitted} {maybe} {left}: {refused:?}");
    assert!(maybe > 0, "the fault did not happen");
    let report = report(&store).await;
    assert!(
        report.warnings.iter().any(|warning| matches!(warning, RedisWarning::Rights(_))),
        "{report:?}"
    );
}

#[tokio::test]
async fn no_timeout_is_too_long() {
    let server = Redis::start();
    let store =
        connected(patient(&server.url()).timeout(Duration::MAX).max_batch(usize::MAX)).await;
    for _ in 0..2 {
        assert!(charge(&store, &policy(10), "k", 1).await.is_admitted());
    }
    assert!(!charge(&store, &policy(10), "k", 9).await.is_admitted());
    assert!(!charge(&store, &policy(10), "k", 9).await.is_admitted());
}

#[tokio::test]
async fn healthy_server_has_no_warnings() {
    let server = Redis::builder().set("maxmemory-policy", "noeviction").start();
    let store = connected(patient(&server.url())).await;
    let report = report(&store).await;
    assert_eq!(report.warnings, []);
    assert_eq!(report.is_cluster, Some(false));
    // `Valkey server v=8.1.1 sha=…`
    let program = Command::new("redis-server").arg("--version").output().unwrap().stdout;
    let program = String::from_utf8(program).unwrap();
    let [name, version] = [report.name, report.version.as_deref()].map(Option::unwrap);
    assert!(program.starts_with(&format!("{name} server v={version} ")), "{program}: {version}");
    assert!(report.clock_ahead.unwrap().abs() < 5_000_000, "{report:?}");
    // The check leaves no key behind.
    assert_eq!(server.cmd(&["DBSIZE"]).number(), 0);
}

/// A connection is not replaced while an answer may still arrive before its deadline.
#[tokio::test]
async fn slow_answer_counts_until_timeout() {
    let server = Redis::start();
    let store = connected(patient(&server.url())).await;
    let policy = policy(10);
    // The check must not interfere.
    until_async("the server has been checked", PATIENCE, async || {
        store.reports().iter().all(|report| report.version.is_some()).then_some(())
    })
    .await;
    server.stop();
    let answer = tokio::spawn(store.charge(&policy, &Key::GLOBAL, Cost::ONE));
    // With the default timeout, a connection is given up after one second of silence.
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    server.cont();
    assert!(answer.await.unwrap().unwrap().is_admitted());
    assert_eq!(store.stats().connections, 1);
}

/// Failing calls force a reconnection at most once per second. While disconnected they force none,
/// and their requests must not be sent later.
#[tokio::test]
async fn outage_causes_a_single_reconnect() {
    let server = Redis::start();
    // Long enough that a busy machine does not force a reconnection.
    let builder = RedisStore::builder(&server.url()).unwrap().timeout(Duration::from_secs(1));
    // Without the breaker, so calls keep failing.
    let store = connected(builder.breaker(false)).await;
    let policy = policy(1_000_000);
    let ask = async || store.charge(&policy, &Key::GLOBAL, Cost::ONE).await;
    server.kill();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        ask().await.unwrap_err();
    }
    server.restart();
    let mut answered = 0;
    until_async("100 consecutive requests are decided", PATIENCE, async || {
        answered = if ask().await.is_ok() { answered + 1 } else { 0 };
        (answered == 100).then_some(())
    })
    .await;
    assert_eq!(store.stats().connections, 2);
}

#[tokio::test]
async fn wrong_password_is_never_shown() {
    let server = Redis::builder().password("s3cret").start();
    let url = server.url().replace("s3cret", "wr0ng");
    let store = RedisStore::connect(&url).unwrap();
    let error = store.charge(&policy(1), &Key::GLOBAL, Cost::ONE).await.unwrap_err();
    assert!(error.is_outage());
    let builder = RedisStore::builder(&url).unwrap();
    for text in
        [format!("{error}"), format!("{error:?}"), format!("{store:?}"), format!("{builder:?}")]
    {
        assert!(!text.contains("wr0ng"), "{text}");
    }
}

#[test]
fn store_requires_a_runtime() {
    let made = RedisStore::connect("redis://127.0.0.1");
    assert!(made.unwrap_err().to_string().ends_with(" [TG0306]"));
}

#[test]
fn store_requires_a_timer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let made = runtime.block_on(async { RedisStore::connect("redis://127.0.0.1") });
    assert!(made.unwrap_err().to_string().ends_with(" [TG0307]"));
}

#[tokio::test]
async fn certificates_must_be_pem() {
    let builder = RedisStore::builder("rediss://127.0.0.1").unwrap();
    let made = builder.certificate_authorities("no PEM").connect();
    assert!(made.unwrap_err().to_string().ends_with(" [TG0304]"));
}

#[test]
fn warnings_have_codes() {
    let why = || "a reason".to_owned();
    for (code, warning) in [
        ("TG0311", RedisWarning::Rights(why())),
        ("TG0312", RedisWarning::Eviction(why())),
        ("TG0312", RedisWarning::EvictionUnknown(why())),
        ("TG0313", RedisWarning::Version(why())),
        ("TG0314", RedisWarning::Cluster),
        ("TG0315", RedisWarning::Script(why())),
    ] {
        assert!(warning.to_string().ends_with(&format!(" [{code}]")), "{warning}");
    }
}

#[tokio::test]
async fn namespace_rejects_braces() {
    let made = RedisStore::builder("redis://127.0.0.1").unwrap().namespace("a{b").connect();
    assert!(matches!(&made, Err(ConnectError::Namespace(_))));
    assert!(made.unwrap_err().to_string().ends_with(" [TG0305]"));
}
