//! Requests that wait in several processes for the units of one store.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::layer::RateLimit;
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, LeakyMode};
use tollgate::{Limit, Policy, Quota, Store};
use tower::ServiceExt;

use crate::support::*;

const EVERY_TEN_SECONDS: Quota = Quota::every(Duration::from_secs(10));

fn waits(policy: Policy, max: Duration) -> Limit {
    Limit::global(policy).cost(1).mode(Mode::Wait(max))
}

/// When the requests of `count` clients pass, in seconds. They are sent to the services in turn,
/// behind a request that takes the only unit.
async fn passes<St: Store>(services: &[RateLimit<Hello, St>], count: usize) -> Vec<u64> {
    let start = Instant::now();
    assert_eq!(status(&services[0]).await, 200);
    let mut tasks = Vec::new();
    for service in services.iter().cycle().take(count) {
        let answer = service.clone().oneshot(get());
        tasks.push(tokio::spawn(async move {
            assert_eq!(answer.await.unwrap().status(), 200);
            start.elapsed().as_secs()
        }));
        settle_down().await;
    }
    let mut passes = Vec::new();
    for task in tasks {
        passes.push(task.await.unwrap());
    }
    passes.sort_unstable();
    passes
}

/// A waiter retries when it was told, and another process may take its unit at that time.
#[tokio::test(start_paused = true)]
async fn waiters_of_two_processes_use_every_unit() {
    for algorithm in Algorithm::ALL {
        let algorithm = match algorithm {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { mode: LeakyMode::Meter },
            other => other,
        };
        let policy = Policy::new("p", EVERY_TEN_SECONDS, algorithm).unwrap();
        // Each layer has its own wait queue, like another process.
        let processes = |count| {
            let store = on_tokio_time();
            let process = || limited(&store, [waits(policy.clone(), Duration::from_secs(600))]);
            (0..count).map(|_| process()).collect::<Vec<_>>()
        };
        let expected = passes(&processes(1), 6).await;
        assert_eq!(passes(&processes(2), 6).await, expected, "{algorithm}");
        assert_eq!(passes(&processes(3), 6).await, expected, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_unit_rejects_waiter_without_time() {
    let store = on_tokio_time();
    let policy = Policy::sliding_window_log("p", EVERY_TEN_SECONDS).unwrap();
    let processes =
        [(); 2].map(|()| limited(&store, [waits(policy.clone(), Duration::from_secs(15))]));
    let start = Instant::now();
    assert_eq!(status(&processes[0]).await, 200);
    let mut outcomes = Vec::new();
    for task in processes.map(|process| tokio::spawn(process.oneshot(get()))) {
        let answer = task.await.unwrap().unwrap();
        outcomes.push((answer.status().as_u16(), start.elapsed().as_secs()));
    }
    // The next unit is available after 20 s, which is longer than the waiter may wait.
    assert_eq!(outcomes, [(200, 10), (429, 10)]);
}
