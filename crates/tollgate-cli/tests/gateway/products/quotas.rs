//! Soft limits and wait queues.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Gateway, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn target_receives_exceeded_soft_limits() {
    let upstream = Upstream::new().await;
    let lines = upstream.with(
        "strategy: sliding_window_log\n\
         exempt: [/free]\n\
         client: {limit: 1, window: 1h, excess: annotate}\n",
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    // Clients cannot forge the header in any spelling.
    let forged = [("x-ratelimit-exceeded", "forged"), ("x_ratelimit_exceeded", "forged")];
    for (path, expected) in [("/", None), ("/", Some(r#""client""#)), ("/free", None)] {
        let answer = client.send("GET", path, &forged, "").await.unwrap();
        assert_eq!(answer.status, 200);
        let header = answer.headers.get("x-ratelimit-exceeded");
        assert_eq!(header.map(|value| value.to_str().unwrap()), expected);
        let seen = upstream.last();
        let header = seen.headers.get("x-ratelimit-exceeded");
        assert_eq!(header.map(|value| value.to_str().unwrap()), expected);
        assert!(!seen.headers.contains_key("x_ratelimit_exceeded"));
    }
}

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
