//! Wait queues.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Gateway, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn excess_waits_or_is_denied_immediately() {
    let upstream = Upstream::new().await;
    let lines = upstream.with(
        "strategy: sliding_window_log\n\
         apis:\n\
         - {identifier: soon, path: /soon, limit: 1, window: 300ms, excess: {wait: 60s}}\n\
         - {identifier: late, path: /late, limit: 1, window: 1h, excess: {wait: 60s}}\n",
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let started = Instant::now();
    let mut waiting = JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        waiting.spawn(async move { client.get("/soon").await.status.as_u16() });
    }
    assert_eq!(waiting.join_all().await, [200; 4]);
    assert!(started.elapsed() >= Duration::from_millis(900));
    assert_eq!(client.get("/late").await.status, 200);
    let started = Instant::now();
    assert_eq!(client.get("/late").await.status, 429);
    assert!(started.elapsed() < Duration::from_secs(30));
}
