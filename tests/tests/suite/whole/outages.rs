//! Redis is frozen or killed and recovers. Meanwhile the replicas decide locally.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_test_servers::Set;
use tollgate_test_servers::until_async;

use super::support::{client, start};
use tollgate_test_servers::http::{Answer, Client};

const LIMIT: u64 = 50;
/// Much longer than the demo's 50 ms because the machine may be busy: with `open`, requests during
/// a stall would be allowed without a charge.
const TIMEOUT: Duration = Duration::from_secs(1);

const AT_ONCE: u64 = 30;

/// How Redis fails and recovers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Redis neither replies nor refuses connections. Later it continues with its data.
    Frozen,
    /// Redis is killed. Later it is restarted without data.
    Gone,
}

impl Fault {
    const ALL: [Self; 2] = [Self::Frozen, Self::Gone];

    fn begin(self, set: &mut Set) {
        match self {
            Self::Frozen => set.redis.stop(),
            Self::Gone => set.redis.kill(),
        }
    }

    fn end(self, set: &mut Set) {
        match self {
            Self::Frozen => set.redis.cont(),
            Self::Gone => set.redis.restart(),
        }
    }
}

fn set() -> Set {
    let (limit, timeout) = (LIMIT.to_string(), format!("{}ms", TIMEOUT.as_millis()));
    start(&[
        "--key",
        "api-key",
        "--limit",
        &limit,
        "--window",
        "1h",
        "--store-timeout",
        &timeout,
        "--on-store-error",
        "local",
    ])
}

/// Sends the requests in groups and checks that no response takes long.
async fn ask(client: &Client, key: &str, times: u64) -> Vec<Answer> {
    let mut answers = Vec::new();
    while (answers.len() as u64) < times {
        let mut requests = JoinSet::new();
        for _ in 0..AT_ONCE.min(times - answers.len() as u64) {
            let (client, key) = (client.clone(), key.to_owned());
            requests.spawn(async move {
                let asked = Instant::now();
                (client.get_with("/items", &[("x-api-key", &key)]).await, asked.elapsed())
            });
        }
        for (answer, took) in requests.join_all().await {
            // Redis may use the timeout. The rest allows for a busy machine.
            assert!(took < TIMEOUT * 2, "an answer took {took:?}");
            answers.push(answer);
        }
    }
    answers
}

fn count(answers: &[Answer], status: u16) -> u64 {
    answers.iter().filter(|answer| answer.status == status).count() as u64
}

/// Waits until each replica uses Redis again, and then checks that the limit is exact.
async fn assert_recovered(set: &Set, name: &str) {
    for replica in &set.replicas {
        let client = Client::new(replica.address());
        until_async("Redis decides again", Duration::from_secs(20), async || {
            let answer = client.get_with("/items", &[("x-api-key", "back")]).await;
            // Only a decision from Redis has the full limit.
            (answer.header("x-ratelimit-limit") == LIMIT.to_string()).then_some(())
        })
        .await;
    }
    let answers = ask(&client(set), &format!("after-{name}"), 3 * LIMIT).await;
    assert_eq!(count(&answers, 200), LIMIT, "{name}");
    assert_eq!(count(&answers, 429), 2 * LIMIT, "{name}");
}

/// Waits until each replica knows that there are three.
async fn until_counted(set: &Set) {
    for admin in &set.admins {
        let client = Client::new(*admin);
        until_async("three replicas", Duration::from_secs(20), async || {
            let status = client.get("/status").await.json();
            (status["stores"][0]["redis"]["replicas"] == 3).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_grant_one_quota_together() {
    let mut set = set();
    let client = client(&set);
    until_counted(&set).await;
    for fault in Fault::ALL {
        let key = format!("{fault:?}");
        assert_eq!(count(&ask(&client, &key, 10).await, 200), 10);
        fault.begin(&mut set);
        let answers = ask(&client, &key, 6 * LIMIT).await;
        assert_eq!(count(&answers, 200), 3 * (LIMIT / 3), "{fault:?}");
        assert_eq!(count(&answers, 429), 6 * LIMIT - 3 * (LIMIT / 3), "{fault:?}");
        fault.end(&mut set);
        assert_recovered(&set, &key).await;
    }
}
