//! Concurrent requests through all replicas.

use fastrand::Rng;
use tokio::task::JoinSet;
use tollgate_store_tests::seeds;

use super::support::{METHODS, client, start};
use tollgate_test_servers::http::Client;

const LIMIT: u64 = 1000;

/// A request's result: its cost and, if it was allowed, the remaining units.
struct Outcome {
    cost: u64,
    left: Option<u64>,
    server: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_serializable() {
    let set = start(&["--limit", "1000", "--window", "1h", "--key", "api-key"]);
    let client = client(&set);
    for seed in seeds(4) {
        let outcomes = burst(&client, seed).await;
        for name in ["api1", "api2", "api3"] {
            assert!(outcomes.iter().any(|outcome| outcome.server == name), "{name} got no request");
        }
        is_sequential(&outcomes).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Sends 400 concurrent requests. Each seed has its own key.
async fn burst(client: &Client, seed: u64) -> Vec<Outcome> {
    let mut random = Rng::with_seed(seed);
    let mut requests = JoinSet::new();
    for _ in 0..400 {
        let (method, cost) = METHODS[random.usize(..METHODS.len())];
        let client = client.clone();
        requests.spawn(async move {
            let key = format!("seed-{seed}");
            let answer = client.send(method, "/items", &[("x-api-key", &key)], "").await.unwrap();
            let status = answer.status.as_u16();
            // An allowed request may still fail in the service, such as a POST without a body.
            assert!(matches!(status, 200..500), "{method}: {answer:?}");
            let left = (status != 429).then(|| answer.header("x-ratelimit-remaining"));
            Outcome {
                cost,
                left: left.map(|left| left.parse().unwrap()),
                server: answer.header("x-server-id").to_owned(),
            }
        });
    }
    requests.join_all().await
}

/// Checks that a sequential limiter could have returned the same results, in some order. The
/// allowed requests form a sequence in which each request subtracts its cost from the previous
/// remainder. A denied request must cost more than the final remainder.
fn is_sequential(outcomes: &[Outcome]) -> Result<(), String> {
    let mut passed: Vec<_> = outcomes.iter().filter_map(|it| Some((it.left?, it.cost))).collect();
    passed.sort_unstable_by_key(|&(left, _)| std::cmp::Reverse(left));
    let mut remaining = LIMIT;
    for (left, cost) in passed {
        if remaining.checked_sub(cost) != Some(left) {
            return Err(format!("{cost} of {remaining} units left {left}"));
        }
        remaining = left;
    }
    let mut refused = outcomes.iter().filter(|it| it.left.is_none()).map(|it| it.cost);
    refused.find(|cost| *cost <= remaining).map_or(Ok(()), |cost| {
        Err(format!("a cost of {cost} was denied, but {remaining} units remain"))
    })
}

#[test]
fn impossible_outcomes_are_detected() {
    let outcome = |cost, left| Outcome { cost, left, server: String::new() };
    for (outcomes, is_possible) in [
        (vec![outcome(10, Some(985)), outcome(5, Some(995)), outcome(1, Some(984))], true),
        (vec![outcome(10, Some(990)), outcome(10, Some(990))], false),
        (vec![outcome(10, Some(990)), outcome(5, Some(984))], false),
        (vec![outcome(999, Some(1)), outcome(3, None)], true),
        (vec![outcome(999, Some(1)), outcome(1, None)], false),
    ] {
        assert_eq!(is_sequential(&outcomes).is_ok(), is_possible);
    }
}
