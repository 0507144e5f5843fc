//! Restarts of replicas under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinSet;

use super::support::{client, start};
use tollgate_test_servers::http::Client;

/// More units than the test uses.
const PLENTY: u64 = 1_000_000;
const ASKING: u64 = 16;

/// Clients that send requests without a pause, each over its own connection.
struct Load {
    clients: JoinSet<Vec<(&'static str, StatusCode)>>,
    enough: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Load {
    fn start(client: &Client, key: &str, methods: &'static [&'static str]) -> Self {
        let mut load =
            Self { clients: JoinSet::new(), enough: Arc::default(), answered: Arc::default() };
        for turn in 0..ASKING {
            let client = client.clone();
            let (enough, answered) = (Arc::clone(&load.enough), Arc::clone(&load.answered));
            let key = key.to_owned();
            load.clients.spawn(async move {
                let mut statuses = Vec::new();
                for method in methods.iter().cycle().skip(usize::try_from(turn).unwrap()) {
                    if enough.load(Ordering::Relaxed) {
                        break;
                    }
                    let answer =
                        client.send(method, "/items", &[("x-api-key", &key)], "").await.unwrap();
                    statuses.push((*method, answer.status));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                statuses
            });
        }
        load
    }

    /// Waits for this number of further responses.
    async fn go_on(&self, requests: u64) {
        let end = self.answered.load(Ordering::Relaxed) + requests;
        while self.answered.load(Ordering::Relaxed) < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn stop(self) -> Vec<(&'static str, StatusCode)> {
        self.enough.store(true, Ordering::Relaxed);
        self.clients.join_all().await.concat()
    }
}

/// The responses with a server error, from nginx or a replica.
fn failed(answers: &[(&'static str, StatusCode)]) -> Vec<(&'static str, StatusCode)> {
    answers.iter().filter(|(_, status)| status.is_server_error()).copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replicas_never_exceed_the_limit() {
    let mut set = start(&["--key", "api-key", "--window", "1h", "--limit", "1000"]);
    let load = Load::start(&client(&set), "key", &["GET"]);
    for kill in 0..4 {
        load.go_on(200).await;
        let replica = &mut set.replicas[kill % 3];
        replica.process.kill();
        load.go_on(100).await;
        replica.restart().unwrap();
    }
    load.go_on(400).await;
    let answers = load.stop().await;
    let served = answers.iter().filter(|(_, status)| *status == 200).count();
    let refused = answers.iter().filter(|(_, status)| *status == 429).count();
    assert_eq!(failed(&answers), []);
    assert!(refused > 0, "the quota was not used up");
    let lost = 1000_usize.checked_sub(served).expect("more than the limit was admitted");
    assert!(lost <= usize::try_from(ASKING).unwrap() * 4, "{lost} units were never served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_fails_no_retryable_request() {
    let limit = PLENTY.to_string();
    let mut set = start(&["--key", "api-key", "--window", "1h", "--limit", &limit]);
    let load = Load::start(&client(&set), "key", &["GET", "SEARCH", "POST", "DELETE"]);
    for _ in 0..2 {
        for replica in &mut set.replicas {
            load.go_on(100).await;
            replica.process.terminate();
            let ended = replica.process.wait(Duration::from_secs(10)).unwrap();
            assert!(ended.success(), "{ended}");
            load.go_on(100).await;
            replica.restart().unwrap();
        }
    }
    load.go_on(100).await;
    let answers = load.stop().await;
    let (posts, others): (Vec<_>, Vec<_>) =
        failed(&answers).into_iter().partition(|(method, _)| *method == "POST");
    assert_eq!(others, []);
    // nginx may send a POST over a connection that the replica is closing. The replica may have
    // handled the POST already, so nginx does not retry it. Each client has one request in flight
    // at each restart.
    assert!(posts.len() as u64 <= ASKING * 6, "{posts:?} of {}", answers.len());
}
