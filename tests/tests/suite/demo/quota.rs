//! How many requests are allowed.

use super::support::Replica;

/// Fixed windows start at multiples of their length since 1970, so no such window starts during a
/// test.
const YEAR: &str = "365days";

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
