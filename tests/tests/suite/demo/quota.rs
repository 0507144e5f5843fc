//! How many requests are allowed.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::support::Replica;

/// Fixed windows start at multiples of their length since 1970, so no such window starts during a
/// test.
const YEAR: &str = "365days";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_use_exactly_the_quota() {
    let replica = Replica::start(&["--window", "1h"]);
    let client = replica.client();
    let mut requests = JoinSet::new();
    for number in 0..400 {
        let client = client.clone();
        // The GETs cost 160 units, so they use up any units that remain.
        let (method, cost) = match number % 10 {
            0..4 => ("GET", 1),
            4..6 => ("SEARCH", 3),
            6..8 => ("POST", 5),
            _ => ("DELETE", 10),
        };
        requests.spawn(async move {
            let answer = client.send(method, "/items", &[], "").await.unwrap();
            if answer.status == 429 { 0 } else { cost }
        });
    }
    let admitted: u64 = requests.join_all().await.into_iter().sum();
    assert_eq!(admitted, 100);
    let answer = client.get("/items").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-remaining")), (429, "0"));
}

#[tokio::test]
async fn every_algorithm_limits() {
    for algorithm in
        ["fixed_window_counter", "sliding_window_log", "sliding_window_counter", "token_bucket"]
    {
        let flags = ["--algorithm", algorithm, "--limit", "3", "--window", YEAR, "--costs", "one"];
        let replica = Replica::start(&flags);
        let client = replica.client();
        for expected in ["2", "1", "0"] {
            let answer = client.get("/items").await;
            assert_eq!(answer.status, 200, "{algorithm}");
            assert_eq!(answer.header("x-ratelimit-remaining"), expected, "{algorithm}");
        }
        assert_eq!(client.get("/items").await.status, 429, "{algorithm}");
    }
}

#[tokio::test]
async fn burst_passes_immediately() {
    let flags = ["--algorithm", "token_bucket", "--limit", "1", "--burst", "2", "--window", YEAR];
    let replica = Replica::start(&[&flags[..], &["--costs", "one"]].concat());
    let client = replica.client();
    for expected in [200, 200, 429] {
        assert_eq!(client.get("/items").await.status, expected);
    }
}

#[tokio::test]
async fn leaky_bucket_queues_and_denies() {
    let flags = ["--algorithm", "leaky_bucket", "--limit", "2", "--burst", "2", "--window", "1s"];
    let replica = Replica::start(&[&flags[..], &["--costs", "one"]].concat());
    let client = replica.client();
    let start = Instant::now();
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        let client = client.clone();
        requests.spawn(async move {
            let status = client.get("/items").await.status.as_u16();
            (status, start.elapsed())
        });
    }
    let answers = requests.join_all().await;
    let mut passed: Vec<_> =
        answers.iter().filter(|(status, _)| *status == 200).map(|(_, elapsed)| elapsed).collect();
    passed.sort_unstable();
    assert!(answers.iter().all(|(status, _)| matches!(status, 200 | 429)), "{answers:?}");
    assert!((2..40).contains(&passed.len()), "{passed:?}");
    // A request leaves every half second. The first started after `start`.
    for (turn, elapsed) in (0..).zip(&passed) {
        assert!(**elapsed >= Duration::from_millis(500) * turn, "{passed:?}");
    }
}

#[tokio::test]
async fn request_after_retry_after_passes() {
    let replica = Replica::start(&["--limit", "1", "--window", "1s", "--costs", "one"]);
    let client = replica.client();
    // On a slow machine a second may pass between two requests.
    let mut denied = None;
    for _ in 0..100 {
        let answer = client.get("/items").await;
        if answer.status == 429 {
            denied = Some(answer);
            break;
        }
    }
    let denied = denied.unwrap();
    assert_eq!(denied.header("retry-after"), "1");
    assert_eq!(denied.json()["window"], "1 second");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.get("/items").await.status, 200);
}
