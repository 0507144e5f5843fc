//! Two gateways that share their state in Redis.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::Response;
use http_body_util::{BodyExt, Full};
use tokio::sync::Semaphore;
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

    /// Sends a GET request to a gateway.
    async fn ask(&self, gateway: usize, path: &str, fields: &[(&str, &str)]) -> Reply {
        let answer = self.clients[gateway].send("GET", path, fields, "").await.unwrap();
        let violated = match answer.status.as_u16() {
            429 => answer.json()["violated-policies"].to_string(),
            _ => String::new(),
        };
        let left = answer.header("x-ratelimit-remaining").to_owned();
        Reply { status: answer.status.as_u16(), left, violated }
    }

    /// Sends requests to a path. `asked` contains the gateway and the expected status.
    async fn statuses(&self, path: &str, asked: &[(usize, u16)]) {
        for (number, (gateway, status)) in asked.iter().enumerate() {
            let reply = self.ask(*gateway, path, &[]).await;
            assert_eq!(reply.status, *status, "{path}, request {number}: {reply:?}");
        }
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    left: String,
    violated: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_costs_are_shared() {
    let upstream = Upstream::answering(|seen| {
        let cost = seen.uri.path().rsplit('/').next().unwrap_or_default();
        let response = Response::builder().header("x-tollgate-cost", cost);
        response.body(Full::from("ok").boxed()).unwrap()
    })
    .await;
    let pair = Pair::start(
        &upstream,
        "apis: [{identifier: tokens, path: '/ai/*', strategy: sliding_window_log, \
                 limit: 1000, window: 1h, reserve: {units: 100}}]\n",
    );
    for (gateway, path, spent) in
        [(0, "/ai/400", 400), (1, "/ai/30", 430), (0, "/ai/0", 430), (1, "/ai/500", 930)]
    {
        let reply = pair.ask(gateway, path, &[]).await;
        assert_eq!((reply.status, reply.left), (200, (1_000 - spent).to_string()), "{path}");
        // The other gateway sees the cost as soon as Redis has it.
        let name = "/status/tokens/ip:127.0.0.1";
        until(&format!("the other gateway sees {path}"), async || {
            let other = pair.gateways[1 - gateway].operate("GET", name).await.json();
            other["remaining"] == 1_000 - spent
        })
        .await;
    }
    // The remaining units do not cover the estimate at either gateway.
    pair.statuses("/ai/1", &[(0, 429), (1, 429)]).await;
    assert_eq!(upstream.seen().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_share_a_quota() {
    let upstream = Upstream::new().await;
    let pair = Pair::start(
        &upstream,
        "strategy: sliding_window_log\n\
         apis:\n\
         - {identifier: soon, path: /soon, limit: 1, window: 300ms, excess: {wait: 60s}}\n\
         - {identifier: late, path: /late, limit: 1, window: 1h, excess: {wait: 60s}}\n",
    );
    let started = Instant::now();
    let mut waiting = JoinSet::new();
    for number in 0..6 {
        let client = pair.clients[number % 2].clone();
        waiting.spawn(async move { client.get("/soon").await.status.as_u16() });
    }
    assert_eq!(waiting.join_all().await, [200; 6]);
    // With separate quotas, three requests each would take 600 ms.
    assert!(started.elapsed() >= Duration::from_millis(1_500), "{:?}", started.elapsed());
    // Requests that would wait too long are denied immediately by either gateway.
    pair.statuses("/late", &[(0, 200), (1, 429), (0, 429)]).await;
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
    pair.statuses("/late", &[(0, 200), (1, 429), (0, 429)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strikes_are_shared() {
    let upstream = Upstream::new().await;
    let pair = Pair::start(
        &upstream,
        "strategy: sliding_window_log\n\
         client: {penalty: {strikes: 3, within: 1h, block: 2h}}\n\
         apis: [{identifier: search, path: /search, limit: 1, window: 1h}]\n",
    );
    pair.statuses("/search", &[(0, 200), (1, 429), (0, 429), (1, 429)]).await;
    for gateway in [0, 1] {
        let blocked = pair.clients[gateway].get("/").await;
        assert_eq!((blocked.status.as_u16(), &*blocked.code()), (429, "blocked"), "{gateway}");
    }
    assert_eq!(upstream.seen().len(), 1);
}

/// Covers limits with and without an additional quota.
#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_is_shared() {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let upstream = Upstream::answering_later(move |_| {
        let gate = Arc::clone(&held);
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(Full::from("ok").boxed())
        }
    })
    .await;
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
        for gateway in [0, 1] {
            let full = pair.ask(gateway, path, &[]).await;
            assert_eq!((full.status, full.violated), (429, format!("[\"{name}\"]")), "{gateway}");
        }
        gate.add_permits(2);
        assert_eq!(slow.join_all().await, [200; 2]);
        // Sending the response returns the permit.
        for gateway in [0, 1] {
            gate.add_permits(1);
            until(&format!("gateway {gateway} has a permit for {path}"), async || {
                pair.ask(gateway, path, &[]).await.status == 200
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calendar_windows_are_shared() {
    let upstream = Upstream::new().await;
    // A time zone in which midnight is hours away.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let zone = match since_epoch / 3_600 % 24 {
        6..18 => "UTC",
        _ => "Etc/GMT+12",
    };
    let pair = Pair::start(
        &upstream,
        &format!(
            "global: {{strategy: fixed_window_counter, limit: 3, calendar: month, \
                 timeZone: {zone}}}\n"
        ),
    );
    pair.statuses("/", &[(0, 200), (1, 200), (0, 200), (1, 429), (0, 429)]).await;
    for gateway in &pair.gateways {
        let status = gateway.admin("/status").await.json();
        let global = &status["policies"][0];
        assert_eq!(global["remaining"], 0, "{global}");
        assert_eq!(global["calendar"]["name"], format!("month in {zone}"), "{global}");
        let days = global["calendar"]["period"].as_f64().unwrap() / 86_400.0;
        assert!([28.0, 29.0, 30.0, 31.0].contains(&days), "{days}");
        // The quota is refilled at the end of the month.
        let (left, reset) = (&global["calendar"]["ends_after"], &global["reset_after"]);
        assert!((left.as_f64().unwrap() - reset.as_f64().unwrap()).abs() < 1.0, "{global}");
    }
}
