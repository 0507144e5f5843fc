//! Redis frozen, gone and back: the failure policy is what clients see.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_replicas::Set;
use tollgate_test_servers::until_async;

use super::support::{client, start};
use crate::client::{Answer, Client};

const LIMIT: u64 = 50;
/// Much longer than the 50 ms of the demo, because others use the machine too: what a stall of a
/// quarter of a second leaves undecided passes uncounted under `open`.
const TIMEOUT: Duration = Duration::from_secs(1);

const AT_ONCE: u64 = 30;

/// How Redis fails and recovers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Redis neither replies nor refuses connections; later it continues with its data.
    Frozen,
    /// It is killed; then it is started anew and empty.
    Gone,
}

impl Fault {
    const ALL: [Self; 2] = [Self::Frozen, Self::Gone];

    fn begin(self, set: &mut Set) {
        match self {
            Self::Frozen => set.redis.process.freeze(),
            Self::Gone => set.redis.process.kill(),
        }
    }

    fn end(self, set: &mut Set) {
        match self {
            Self::Frozen => set.redis.process.thaw(),
            Self::Gone => set.redis.restart().unwrap(),
        }
    }
}

fn set(on_store_error: &str) -> Set {
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
        on_store_error,
    ])
}

/// Sends the requests in groups and checks that no request waits for long.
async fn ask(client: &Client, key: &str, times: u64) -> Vec<Answer> {
    let mut answers = Vec::new();
    while (answers.len() as u64) < times {
        let mut requests = JoinSet::new();
        for _ in 0..AT_ONCE.min(times - answers.len() as u64) {
            let (client, key) = (client.clone(), key.to_owned());
            requests.spawn(async move {
                let asked = Instant::now();
                (client.get("/items", &[("x-api-key", &key)]).await, asked.elapsed())
            });
        }
        for (answer, took) in requests.join_all().await {
            // Redis has the timeout, and the rest is for what others do with the machine.
            assert!(took < TIMEOUT * 2, "an answer took {took:?}");
            answers.push(answer);
        }
    }
    answers
}

fn count(answers: &[Answer], status: u16) -> u64 {
    answers.iter().filter(|answer| answer.status == status).count() as u64
}

fn is_limited(answer: &Answer) -> bool {
    !answer.header("ratelimit").is_empty()
}

/// Waits until each replica asks Redis again, and then sees that the limit holds to the unit.
async fn is_exact_again(set: &Set, name: &str) {
    for replica in &set.replicas {
        let client = Client::new(None, replica.address());
        until_async("Redis decides again", Duration::from_secs(20), async || {
            let answer = client.get("/items", &[("x-api-key", "back")]).await;
            // No fallback has this limit, so the response is from a decision in Redis.
            let limit = answer.header("x-ratelimit-limit");
            (is_limited(&answer) && limit == LIMIT.to_string()).then_some(())
        })
        .await;
    }
    let answers = ask(&client(set), &format!("after-{name}"), 3 * LIMIT).await;
    assert_eq!(count(&answers, 200), LIMIT, "{name}");
    assert_eq!(count(&answers, 429), 2 * LIMIT, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_refuses_what_nobody_can_decide() {
    let mut set = set("closed");
    let client = client(&set);
    for fault in Fault::ALL {
        let key = format!("{fault:?}");
        assert_eq!(count(&ask(&client, &key, 10).await, 200), 10);
        fault.begin(&mut set);
        for answer in ask(&client, &key, 60).await {
            assert_eq!(answer.status, 503, "{fault:?}");
            assert!(!is_limited(&answer), "{fault:?}: {answer:?}");
            assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
            assert_eq!(answer.json()["code"], "temporary-reduced-capacity");
        }
        fault.end(&mut set);
        is_exact_again(&set, &key).await;
        // A frozen Redis may have charged requests of the outage later, so fewer requests may be
        // allowed, but never more than the limit.
        let served = count(&ask(&client, &key, 2 * LIMIT).await, 200);
        let most = if fault == Fault::Frozen { LIMIT - 10 } else { LIMIT };
        assert!(served <= most, "{fault:?}: {served} more were served");
        assert!(served >= most - 15, "{fault:?}: only {served} more were served");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_lets_pass_what_nobody_can_decide() {
    let mut set = set("open");
    let client = client(&set);
    for fault in Fault::ALL {
        let key = format!("{fault:?}");
        assert_eq!(count(&ask(&client, &key, 2 * LIMIT).await, 200), LIMIT);
        fault.begin(&mut set);
        // A denial is remembered for a second at most, and is no outage.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        for answer in ask(&client, &key, 60).await {
            assert_eq!(answer.status, 200, "{fault:?}");
            assert!(!is_limited(&answer), "{fault:?}: {answer:?}");
        }
        fault.end(&mut set);
        is_exact_again(&set, &key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_grants_each_replica_its_half() {
    let mut set = set("local");
    let client = client(&set);
    for fault in Fault::ALL {
        let key = format!("{fault:?}");
        assert_eq!(count(&ask(&client, &key, 10).await, 200), 10);
        fault.begin(&mut set);
        let answers = ask(&client, &key, 6 * LIMIT).await;
        assert_eq!(count(&answers, 200), 3 * (LIMIT / 2), "{fault:?}");
        assert_eq!(count(&answers, 429), 6 * LIMIT - 3 * (LIMIT / 2), "{fault:?}");
        fault.end(&mut set);
        is_exact_again(&set, &key).await;
    }
}
