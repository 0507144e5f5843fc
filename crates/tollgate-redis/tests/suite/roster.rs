//! Processes count each other, so that together they stay within the quota while Redis is down.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::MemoryStore;
use tollgate_core::{Cost, Fallback, Key, Policy, Quota, Store, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Cluster, Redis, until_async};

use crate::support::{Client, Server, Value};

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

    // It cannot know the others.
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
    // Not all of them have returned, and those that have are few.
    until_async("a heartbeat", Duration::from_secs(20), async || {
        redis.cmd(&["EXISTS", "tollgate:{roster}"]).number().eq(&1).then_some(())
    })
    .await;
    redis.kill();
    assert!(admitted(&processes, &policy("p")).await <= QUOTA);
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_counts_processes() {
    let cluster = Cluster::start();
    let processes: Vec<_> = (0..2).map(|_| process(&cluster.url())).collect();
    until_counted(&processes, 2).await;
    for node in 0..3 {
        cluster.node(node).kill();
    }
    assert_eq!(admitted(&processes, &policy("p")).await, QUOTA);
}

/// Calls the script with a member's number, at a second of the server's time.
fn count(client: &mut Client, member: u64, second: u64) -> i64 {
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
