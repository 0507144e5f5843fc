//! How much passes.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::support::Replica;

/// A fixed window begins at a multiple of itself since 1970: none of a year begins
/// during a test.
const YEAR: &str = "365days";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_hundred_at_once_are_admitted_as_if_one_by_one() {
    let replica = Replica::start(&["--window", "1h"]);
    let client = replica.client();
    let mut requests = JoinSet::new();
    for number in 0..400 {
        let client = client.clone();
        // There are more units in GETs than in the quota, so they fill what others leave.
        let (method, cost) = match number % 10 {
            0..4 => ("GET", 1),
            4..6 => ("SEARCH", 3),
            6..8 => ("POST", 5),
            _ => ("DELETE", 10),
        };
        requests.spawn(async move {
            let answer = client.send(method, "/items", &[], "").await;
            if answer.status == 429 { 0 } else { cost }
        });
    }
    let admitted: u64 = requests.join_all().await.into_iter().sum();
    assert_eq!(admitted, 100);
    let answer = client.get("/items", &[]).await;
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
            let answer = client.get("/items", &[]).await;
            assert_eq!(answer.status, 200, "{algorithm}");
            assert_eq!(answer.header("x-ratelimit-remaining"), expected, "{algorithm}");
        }
        assert_eq!(client.get("/items", &[]).await.status, 429, "{algorithm}");
    }
}

#[tokio::test]
async fn a_burst_is_what_passes_at_once() {
    let flags = ["--algorithm", "token_bucket", "--limit", "1", "--burst", "2", "--window", YEAR];
    let replica = Replica::start(&[&flags[..], &["--costs", "one"]].concat());
    let client = replica.client();
    for expected in [200, 200, 429] {
        assert_eq!(client.get("/items", &[]).await.status, expected);
    }
}

#[tokio::test]
async fn a_leaky_bucket_holds_back_what_finds_room_and_refuses_the_rest() {
    let flags = ["--algorithm", "leaky_bucket", "--limit", "2", "--burst", "2", "--window", "1s"];
    let replica = Replica::start(&[&flags[..], &["--costs", "one"]].concat());
    let client = replica.client();
    let start = Instant::now();
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        let client = client.clone();
        requests.spawn(async move {
            let status = client.get("/items", &[]).await.status.as_u16();
            (status, start.elapsed())
        });
    }
    let answers = requests.join_all().await;
    let mut passed: Vec<_> =
        answers.iter().filter(|(status, _)| *status == 200).map(|(_, elapsed)| elapsed).collect();
    passed.sort_unstable();
    assert!(answers.iter().all(|(status, _)| matches!(status, 200 | 429)), "{answers:?}");
    assert!((2..40).contains(&passed.len()), "{passed:?}");
    // One leaves each half second. The first began after the clock did.
    for (turn, elapsed) in (0..).zip(&passed) {
        assert!(**elapsed >= Duration::from_millis(500) * turn, "{passed:?}");
    }
}

#[tokio::test]
async fn who_waits_as_long_as_retry_after_says_passes() {
    let replica = Replica::start(&["--limit", "1", "--window", "1s", "--costs", "one"]);
    let client = replica.client();
    // On a slow machine a second may pass between two requests.
    let mut denied = None;
    for _ in 0..100 {
        let answer = client.get("/items", &[]).await;
        if answer.status == 429 {
            denied = Some(answer);
            break;
        }
    }
    let denied = denied.unwrap();
    assert_eq!(denied.header("retry-after"), "1");
    assert_eq!(denied.json()["window"], "1 second");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(client.get("/items", &[]).await.status, 200);
}
