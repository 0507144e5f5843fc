//! Processes share operators' overrides.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_core::{
    Charge, Cost, Key, Micros, Override, OverrideChange, Overrides, Policy, Quota, Source, Store,
    StoreExt,
};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Cluster, Redis, Value, until_async};

fn process(url: &str) -> (RedisStore, Overrides) {
    // A busy machine may take longer than the default.
    let store =
        RedisStore::builder(url).unwrap().timeout(Duration::from_secs(5)).connect().unwrap();
    let overrides = store.overrides().unwrap();
    (store, overrides)
}

fn limit(limit: u64) -> OverrideChange {
    OverrideChange::Quota { limit, window: None, burst: None }
}

async fn set(overrides: &Overrides, subject: &str, change: OverrideChange, lasts: Duration) {
    let until = overrides.now() + Micros::from(lasts);
    let (policy, key) = ("p".to_owned(), Key::new(subject));
    let it = Override { policy, subject: subject.to_owned(), change, until };
    overrides.set(&key, it).await.unwrap();
}

fn found(overrides: &Overrides, subject: &str) -> Option<OverrideChange> {
    overrides.find("p", &Key::new(subject)).map(|it| it.change)
}

/// Waits until each process has found this change.
async fn until_found(processes: &[Overrides], subject: &str, change: Option<OverrideChange>) {
    until_async(&format!("{change:?}"), Duration::from_secs(20), async || {
        processes.iter().all(|it| found(it, subject) == change).then_some(())
    })
    .await;
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn changes_reach_all_processes_within_two_seconds() {
    let redis = Redis::start();
    let (stores, processes): (Vec<_>, Vec<_>) = (0..3).map(|_| process(&redis.url())).unzip();
    for store in &stores {
        store.connected().await;
    }
    let mut changes = vec![Some(limit(5)), Some(limit(6)), Some(OverrideChange::Block), None];
    changes.extend([Some(limit(7))]);
    for (number, change) in changes.into_iter().enumerate() {
        let by = &processes[number % 3];
        match change {
            Some(change) => set(by, "ann", change, HOUR).await,
            None => assert!(by.remove("p", &Key::new("ann")).await.unwrap()),
        }
        assert_eq!(found(by, "ann"), change, "in the process that changes it");
        let changed = Instant::now();
        until_found(&processes, "ann", change).await;
        assert!(changed.elapsed() < Duration::from_secs(2), "{:?}", changed.elapsed());
    }
    // A process that starts later.
    let (_store, later) = process(&redis.url());
    until_found(&[later], "ann", Some(limit(7))).await;
    // Keys are hidden in Redis.
    let value = redis.cmd(&["GET", "tollgate:{overrides}"]);
    assert!(value.text().contains("\t7,-,-\tp\tann"), "{}", value.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_end_by_redis_time() {
    let redis = Redis::start();
    let (_one, one) = process(&redis.url());
    let (_two, two) = process(&redis.url());
    set(&one, "ann", limit(5), Duration::from_secs(3)).await;
    set(&one, "bob", limit(6), HOUR).await;
    until_found(&[one.clone(), two.clone()], "ann", Some(limit(5))).await;
    until_found(&[one.clone(), two.clone()], "ann", None).await;
    assert_eq!([found(&one, "bob"), found(&two, "bob")], [Some(limit(6)); 2]);
    set(&two, "bob", limit(6), Duration::from_secs(1)).await;
    until_found(&[one.clone(), two.clone()], "bob", None).await;
    assert!(!one.is_any() && !two.is_any());
    // The value expires with the last override.
    until_async("an empty Redis", Duration::from_secs(5), async || {
        (redis.cmd(&["EXISTS", "tollgate:{overrides}"]) == Value::Number(0)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_are_all_kept() {
    let redis = Redis::start();
    let (_stores, processes): (Vec<_>, Vec<_>) = (0..4).map(|_| process(&redis.url())).unzip();
    set(&processes[0], "ann", limit(1), HOUR).await;
    let all: JoinSet<()> = (processes.iter().cloned().enumerate())
        .map(|(number, overrides)| async move {
            for n in 0..5 {
                set(&overrides, &format!("{number}-{n}"), limit(2), HOUR).await;
            }
        })
        .collect();
    all.join_all().await;
    until_async("21 overrides", Duration::from_secs(5), async || {
        processes.iter().all(|it| it.list().len() == 21).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_and_loss_of_data_are_survived() {
    let redis = Redis::start();
    let (store, overrides) = process(&redis.url());
    set(&overrides, "ann", limit(5), HOUR).await;
    redis.stop();
    let refused = overrides.remove("p", &Key::new("ann")).await.unwrap_err();
    assert!(refused.is_outage(), "{refused}");
    // The copy still applies.
    assert_eq!(found(&overrides, "ann"), Some(limit(5)));
    redis.cont();
    store.connected().await;
    redis.cmd(&["FLUSHALL"]);
    until_found(std::slice::from_ref(&overrides), "ann", None).await;
    until_async("a working Redis", Duration::from_secs(10), async || {
        let until = overrides.now() + Micros::from(HOUR);
        let (policy, subject) = ("p".to_owned(), "ann".to_owned());
        let it = Override { policy, subject, change: limit(6), until };
        overrides.set(&Key::new("ann"), it).await.ok()
    })
    .await;
    assert_eq!(found(&overrides, "ann"), Some(limit(6)));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_has_one_list() {
    let cluster = Cluster::start();
    let (_one, one) = process(&cluster.url());
    let (_two, two) = process(&cluster.url());
    for n in 0..5 {
        set(&one, &n.to_string(), limit(n + 1), HOUR).await;
    }
    until_async("5 overrides", Duration::from_secs(10), async || {
        (two.list().len() == 5).then_some(())
    })
    .await;
}

/// A remembered denial belongs to a quota, so it does not hide a raise.
#[tokio::test(flavor = "multi_thread")]
async fn raise_is_not_hidden_by_remembered_denials() {
    let redis = Redis::start();
    let (store, overrides) = process(&redis.url());
    let policy = Policy::fixed_window_counter("p", Quota::new(1, Policy::MAX_WINDOW)).unwrap();
    let key = Key::new("ann");
    let charge = async |policy: &Policy| {
        let verdict = store.decide(&[Charge::new(policy, &key, Cost::ONE)]).await.unwrap();
        (verdict.is_admitted(), verdict.source())
    };
    assert_eq!(charge(&policy).await, (true, Source::Store));
    assert_eq!(charge(&policy).await, (false, Source::Store));
    assert_eq!(charge(&policy).await, (false, Source::Cache));
    set(&overrides, "ann", limit(2), HOUR).await;
    let raised = overrides.find("p", &key).unwrap().change.policy(&policy).unwrap();
    assert_eq!(charge(&raised).await, (true, Source::Store));
    assert_eq!(charge(&raised).await, (false, Source::Store));
    assert_eq!(store.peek(&policy, &key).await.unwrap().decisions()[0].remaining, 0);
}
