//! Penalties, concurrency limits and leases.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tollgate_test_servers::Redis;

use crate::support::{Client, Gateway, Upstream, until};

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limit_protects_a_slow_upstream() {
    let (gate, now, most) =
        (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
    let upstream = Upstream::answering_later(move |_| {
        let (gate, now, most) = seen.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _open = gate.acquire().await.unwrap();
            now.fetch_sub(1, Ordering::SeqCst);
            Response::new(Full::from("ok").boxed())
        }
    })
    .await;
    let lines =
        upstream.with("client: {limit: 1000, window: 1h, concurrency: {max: 3, ttl: 30s}}\n");
    let (_gateway, client) = Gateway::with_client(&lines);
    let mut asked = JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        asked.spawn(async move { client.get("/report").await });
    }
    // While three requests are in flight, the rest are denied.
    for _ in 0..17 {
        let denied = asked.join_next().await.unwrap().unwrap();
        assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (429, "1"));
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["client/inflight"]));
    }
    // The three requests may not have reached the upstream yet.
    until("three requests are in flight", async || now.load(Ordering::SeqCst) == 3).await;
    gate.add_permits(1_000);
    for answer in asked.join_all().await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    // The permits were returned before the client read the responses.
    for _ in 0..3 {
        assert_eq!(client.get("/report").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permit_is_held_until_the_body_ends() {
    let (sender, body) = Channel::<Bytes, Infallible>::new(4);
    let body = std::sync::Mutex::new(Some(body));
    let upstream = Upstream::answering(move |_| {
        let streamed = body.lock().unwrap().take();
        Response::new(streamed.map_or_else(|| Full::from("ok").boxed(), BodyExt::boxed))
    })
    .await;
    let lines = upstream.with(
        "apis: [{identifier: stream, path: /stream, limit: 1000, window: 1h, \
            concurrency: {max: 1}}]\n",
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let first = client.clone();
    let first = tokio::spawn(async move { first.get("/stream").await });
    upstream.until_seen(1).await;
    let mut sender = sender;
    sender.send(Frame::data(Bytes::from_static(b"a piece"))).await.unwrap();
    // The response is incomplete, so its permit is still in use.
    for _ in 0..50 {
        assert_eq!(client.get("/stream").await.status, 429);
    }
    assert_eq!(client.get("/other").await.status, 200);
    drop(sender);
    assert_eq!(first.await.unwrap().body, "a piece");
    // The permit was returned before the client read the end.
    for _ in 0..3 {
        assert_eq!(client.get("/stream").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_respect_the_limit_and_are_returned() {
    const LIMIT: usize = 1_000;
    let upstream = Upstream::new().await;
    let redis = Redis::start();
    let lines = format!(
        "{}store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         global: {{strategy: sliding_window_log, limit: {LIMIT}, window: 2h, \
             lease: {{share: 1/10, ttl: 1h}}}}\n",
        upstream.target(),
        redis.url()
    );
    let mut gateways = [Gateway::start(&lines), Gateway::start(&lines)];
    let ask = async |each: usize| {
        let mut asked = JoinSet::new();
        for gateway in &gateways {
            let client = Client::new(gateway.address);
            asked.spawn(async move {
                let mut passed = 0;
                for _ in 0..each {
                    passed += usize::from(client.get("/").await.status == 200);
                }
                passed
            });
        }
        asked.join_all().await.into_iter().sum::<usize>()
    };
    let calls = || redis.calls("evalsha") + redis.calls("fcall");
    let before = calls();
    let mut passed = ask(300).await;
    // Without leases there would be 600 calls.
    let asked = calls() - before;
    assert!((32..300).contains(&asked), "{asked}");
    passed += ask(150).await;
    assert!(passed <= LIMIT && passed > LIMIT / 2, "{passed}");

    // The leases last for an hour, but a gateway returns its leases on shutdown.
    for gateway in &mut gateways {
        gateway.signal("TERM");
        assert!(gateway.wait().success(), "{}", gateway.log());
    }
    let third = Gateway::start(&lines);
    let client = Client::new(third.address);
    until("the returned units are used", async || {
        passed += usize::from(client.get("/").await.status == 200);
        passed == LIMIT
    })
    .await;
    for _ in 0..100 {
        assert_eq!(client.get("/").await.status, 429);
    }
    assert_eq!(upstream.seen().len(), LIMIT);
}
