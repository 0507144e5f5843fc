//! Gateways that share quotas in Redis.

use tollgate_test_servers::Redis;

use crate::support::{Client, Gateway, Upstream, until};

fn lines(upstream: &Upstream, redis: &Redis, timeout: &str, policies: &str) -> String {
    format!(
        "{}strategy: sliding_window_log\n\
         store: {{redis: {{url: '{}', timeout: {timeout}, localShare: 1/2}}}}\n{policies}",
        upstream.target(),
        redis.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_quota_survives_a_restart() {
    let upstream = Upstream::new().await;
    let redis = Redis::builder().password("s3cret").start();
    let lines = lines(&upstream, &redis, "5s", "client: {limit: 10, windowSeconds: 3600}\n");
    let replicas = [Gateway::start(&lines), Gateway::start(&lines)];
    let clients = replicas.each_ref().map(|gateway| Client::new(gateway.address));
    for n in 0..8 {
        let answer = clients[n % 2].get("/").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-remaining"), (9 - n).to_string());
    }
    drop(replicas);
    let after = Gateway::start(&lines);
    let client = Client::new(after.address);
    for expected in [200, 200, 429] {
        assert_eq!(client.get("/").await.status, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_choose_their_failure_policy() {
    let upstream = Upstream::new().await;
    let redis = Redis::start();
    let policies = "apis:\n\
         - {identifier: open, path: /open, limit: 2, windowSeconds: 3600, onStoreError: open}\n\
         - {identifier: closed, path: /closed, limit: 2, windowSeconds: 3600, onStoreError: closed}\n\
         - {identifier: local, path: /local, limit: 4, windowSeconds: 3600, onStoreError: local}\n";
    let (_gateway, client) = Gateway::with_client(&lines(&upstream, &redis, "300ms", policies));
    for path in ["/open", "/closed", "/local"] {
        assert_eq!(client.get(path).await.status, 200);
    }
    redis.kill();
    let statuses = async |path: &str, count: usize| {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(client.get(path).await.status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses("/open", 8).await, [200; 8]);
    let closed = client.get("/closed").await;
    assert_eq!(closed.status, 503);
    assert!(!closed.header("retry-after").is_empty());
    let local = statuses("/local", 4).await;
    assert_eq!(local, [200, 200, 429, 429], "the local limit is half of four");

    redis.restart();
    until("Redis decides again", async || client.get("/closed").await.status == 200).await;
}
