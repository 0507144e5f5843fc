//! Processes count each other, so together they do not exceed the quota while Redis is down.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, block_in_place};
use tollgate::MemoryStore;
use tollgate_core::{Cost, Fallback, Key, Policy, Quota, Source, Store, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Cluster, Redis, Sentinels, until_async};

use crate::cluster::MINUTE;
use crate::support::{ScriptClient, Server, Value};

type Process = Fallback<RedisStore, MemoryStore>;

const QUOTA: u64 = 100;

fn process(url: &str) -> Process {
    RedisStore::connect(url).unwrap().or_local(MemoryStore::new())
}

/// Waits until each process has counted as many.
async fn until_counted(processes: &[Process], count: u32) {
    until_async(&format!("{count} processes"), Duration::from_secs(20), async || {
        let counts = processes.iter().map(|it| it.replicas().map_or(0, u32::from));
        counts.into_iter().all(|it| it == count).then_some(())
    })
    .await;
}

/// Returns how many units the processes admit together.
async fn admitted(processes: &[Process], policy: &Policy) -> u64 {
    let each = processes.iter().map(|process| {
        let (process, policy) = (process.clone(), policy.clone());
        async move {
            let mut admitted = 0;
            for _ in 0..=QUOTA {
                let verdict = process.charge(&policy, &Key::GLOBAL, Cost::ONE).await.unwrap();
                admitted += u64::from(verdict.is_admitted());
            }
            admitted
        }
    });
    let each: JoinSet<u64> = each.collect();
    each.join_all().await.iter().sum()
}

/// A policy with the longest window, so no window starts while a test runs.
fn policy(name: &str) -> Policy {
    Policy::fixed_window_counter(name, Quota::new(QUOTA, Policy::MAX_WINDOW)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_one_quota_in_an_outage() {
    let redis = Redis::start();
    let mut processes: Vec<_> = (0..4).map(|_| process(&redis.url())).collect();
    until_counted(&processes, 4).await;
    // A store without a fallback takes no share, and neither does an older build.
    let other = RedisStore::connect(&redis.url()).unwrap();
    other.connected().await;
    processes.push(process(&redis.url()));
    until_counted(&processes, 5).await;
    redis.kill();
    assert_eq!(admitted(&processes, &policy("counted")).await, QUOTA);

    let halves = processes.iter().map(|it| it.clone().with_share(1, 2).unwrap());
    let halves: Vec<_> = halves.collect();
    assert_eq!(admitted(&halves, &policy("halves")).await, 5 * QUOTA / 2);

    // It cannot know the other processes.
    let late = [process(&redis.url())];
    assert_eq!(admitted(&late, &policy("late")).await, QUOTA / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn count_survives_loss_of_data() {
    let redis = Redis::start();
    let processes: Vec<_> = (0..3).map(|_| process(&redis.url())).collect();
    until_counted(&processes, 3).await;
    redis.restart();
    processes[0].get_ref().connected().await;
    // Only a few of the processes have returned.
    until_async("a heartbeat", Duration::from_secs(20), async || {
        redis.cmd(&["EXISTS", "tollgate:{roster}"]).number().eq(&1).then_some(())
    })
    .await;
    redis.kill();
    assert!(admitted(&processes, &policy("p")).await <= QUOTA);
}

/// A client of each process, which charges one unit after the other.
struct Load {
    /// The units that the processes' local stores admitted.
    locally: Arc<AtomicU64>,
    /// The requests that Redis decided, for each process.
    by_redis: Vec<Arc<AtomicU64>>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(processes: impl Iterator<Item = Process>, policy: &Policy, key: &Key) -> Self {
        let mut load = Self { locally: Arc::default(), by_redis: vec![], tasks: JoinSet::new() };
        for process in processes {
            let (locally, by_redis) = (Arc::clone(&load.locally), Arc::<AtomicU64>::default());
            load.by_redis.push(Arc::clone(&by_redis));
            let (policy, key) = (policy.clone(), key.clone());
            load.tasks.spawn(async move {
                loop {
                    let verdict = process.charge(&policy, &key, Cost::ONE).await.unwrap();
                    if verdict.source() == Source::Store {
                        by_redis.fetch_add(1, Ordering::SeqCst);
                    } else if verdict.source() == Source::Local && verdict.is_admitted() {
                        locally.fetch_add(1, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        load
    }

    /// Waits until Redis decides for each process again.
    async fn until_redis_decides(&self) {
        let counts = || self.by_redis.iter().map(|it| it.load(Ordering::SeqCst));
        let before: Vec<_> = counts().collect();
        until_async("decisions by Redis", MINUTE, async || {
            counts().zip(&before).all(|(now, before)| now > *before).then_some(())
        })
        .await;
    }

    async fn until_admitted_locally(&self, units: u64) {
        until_async("the local shares", MINUTE, async || {
            (self.locally.load(Ordering::SeqCst) >= units).then_some(())
        })
        .await;
    }
}

/// Replaces a master under load, and compares counted shares with fixed halves.
async fn replace_master(url: &str, key: &Key, kill: impl FnOnce(), wait: impl FnOnce()) {
    let processes: Vec<_> = (0..5).map(|_| process(url)).collect();
    until_counted(&processes, 5).await;
    let counted = Load::start(processes.iter().cloned(), &policy("counted"), key);
    let halves = processes.iter().map(|it| it.clone().with_share(1, 2).unwrap());
    let halves = Load::start(halves, &policy("halves"), key);
    counted.until_redis_decides().await;
    block_in_place(kill);
    halves.until_admitted_locally(5 * QUOTA / 2).await;
    counted.until_admitted_locally(QUOTA).await;
    block_in_place(wait);
    for load in [&counted, &halves] {
        load.until_redis_decides().await;
    }
    assert_eq!(counted.locally.load(Ordering::SeqCst), QUOTA);
    assert_eq!(halves.locally.load(Ordering::SeqCst), 5 * QUOTA / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_failover_grants_one_local_quota() {
    let sentinels = Sentinels::start();
    let old = sentinels.master();
    let kill = || sentinels.node(old).kill();
    let wait = || assert_ne!(sentinels.wait_for_failover(old), old);
    replace_master(&sentinels.url(), &Key::GLOBAL, kill, wait).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_failover_grants_one_local_quota() {
    let cluster = Cluster::start();
    let store = RedisStore::connect(&cluster.url()).unwrap();
    // The master that counts the processes must be down too.
    let slot = cluster.slot_of("tollgate:{roster}");
    let old = cluster.master_of(slot);
    let is_there = |key: &Key| {
        cluster.master_of(cluster.slot_of(store.name_of(&policy("counted"), key))) == old
    };
    let key = (0_u32..).map(|n| Key::new(n.to_be_bytes())).find(is_there).unwrap();
    let wait = || assert_ne!(cluster.wait_for_failover(slot, old), old);
    replace_master(&cluster.url(), &key, || cluster.node(old).kill(), wait).await;
}

/// Calls the script with a member's number, at a second of the server's time.
fn count(client: &mut ScriptClient, member: u64, second: u64) -> i64 {
    let (number, second) = (member.to_be_bytes(), second.to_string());
    let script = include_bytes!("../../lua/roster.lua");
    match client.run(&[b"EVAL", script, b"1", b"{roster}", &number, second.as_bytes()]) {
        Value::Number(count) => count,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_count_for_one_to_two_periods() {
    let server = Server::start();
    let client = &mut server.connect();
    let mut counts = |calls: &[(u64, u64)]| {
        calls.iter().map(|&(member, second)| count(client, member, second)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&[(1, 100), (2, 101), (1, 102), (3, 104)]), [1, 2, 2, 3]);
    // The next period, in which member 2 is missing.
    assert_eq!(counts(&[(3, 105), (1, 106), (4, 107), (3, 108)]), [3, 3, 4, 4]);
    assert_eq!(counts(&[(1, 110), (3, 111), (4, 112)]), [3, 3, 3]);
    // The clock steps back, and then forward.
    assert_eq!(counts(&[(1, 50), (5, 51), (1, 113)]), [3, 4, 4]);
    assert_eq!(counts(&[(1, 200), (3, 200)]), [1, 2]);
}
