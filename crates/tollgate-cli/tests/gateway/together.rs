//! Two gateways that share their state in Redis.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_test_servers::Redis;

use crate::support::{Client, Gateway, Upstream, until};

/// Two gateways with the same configuration.
struct Pair {
    gateways: [Gateway; 2],
    clients: [Client; 2],
    redis: Redis,
}

impl Pair {
    fn start(upstream: &Upstream, lines: &str) -> Self {
        let redis = Redis::start();
        let lines = format!(
            "{}store: {{redis: {{url: '{}', timeout: 5s}}}}\n{lines}",
            upstream.target(),
            redis.url()
        );
        let gateways = [(); 2].map(|()| Gateway::start(&lines));
        let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
        Self { gateways, clients, redis }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_requests_have_one_order_and_one_call_each() {
    const REQUESTS: usize = 12;
    let upstream = Upstream::new().await;
    let pair = Pair::start(
        &upstream,
        "strategy: sliding_window_log\n\
         global: {limit: 1, window: 300ms, excess: {queue: 60s}}\n\
         apis: [{identifier: late, path: /late, limit: 1, window: 1h, excess: {queue: 60s}}]\n",
    );
    let reads = || pair.redis.calls("get");
    let (started, before) = (Instant::now(), reads());
    let mut queued = JoinSet::new();
    for (number, client) in pair.clients.iter().cycle().take(REQUESTS).cloned().enumerate() {
        queued.spawn(async move { client.get(&format!("/{number}")).await.status.as_u16() });
        until("the request has a place", async || {
            let mut decided = upstream.seen().len();
            for gateway in &pair.gateways {
                let metrics = gateway.metrics().await;
                let gauge = "tollgate_waiting_requests{policy=\"global\"} ";
                let waiting = metrics.lines().find_map(|line| line.strip_prefix(gauge));
                decided += waiting.map_or(0, |waiting| waiting.parse::<usize>().unwrap());
            }
            decided > number
        })
        .await;
    }
    assert_eq!(queued.join_all().await, [200; REQUESTS]);
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_millis(3_300), "{elapsed:?}");
    let left: Vec<_> = upstream.seen().iter().map(|seen| seen.uri.to_string()).collect();
    assert_eq!(left, std::array::from_fn::<_, REQUESTS, _>(|number| format!("/{number}")));
    // A decision reads its key once. Each gateway also announces itself every second.
    let announcements = 2 * (elapsed.as_secs() + 2);
    assert!(reads() - before <= REQUESTS as u64 + announcements, "{}", reads() - before);
    // Requests that would queue too long are denied immediately by either gateway.
    for (gateway, status) in [(0, 200), (1, 429), (0, 429)] {
        assert_eq!(pair.clients[gateway].get("/late").await.status, status, "{gateway}");
    }
}

/// Covers limits with and without an additional quota.
#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_is_shared() {
    let (upstream, gate) = Upstream::gated("/").await;
    let pair = Pair::start(
        &upstream,
        "apis:\n\
         - {identifier: only, path: /only, concurrency: 2}\n\
         - {identifier: beside, path: /beside, limit: 100, window: 1h, concurrency: {max: 2}}\n",
    );
    for (path, name) in [("/only", "only/inflight"), ("/beside", "beside/inflight")] {
        let before = upstream.seen().len();
        let mut slow = JoinSet::new();
        for client in pair.clients.clone() {
            slow.spawn(async move { client.get(path).await.status.as_u16() });
        }
        upstream.until_seen(before + 2).await;
        for client in &pair.clients {
            let full = client.get(path).await;
            assert_eq!(full.status, 429);
            assert_eq!(full.json()["violated-policies"], serde_json::json!([name]));
        }
        gate.add_permits(2);
        assert_eq!(slow.join_all().await, [200; 2]);
        // Sending the response returns the permit.
        for gateway in [0, 1] {
            gate.add_permits(1);
            until(&format!("gateway {gateway} has a permit for {path}"), async || {
                pair.clients[gateway].get(path).await.status == 200
            })
            .await;
        }
    }
}
