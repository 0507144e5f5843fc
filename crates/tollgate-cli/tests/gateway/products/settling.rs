//! Charges that the response settles or refunds.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;
use tollgate_test_servers::{Redis, until_async};

use crate::support::{Answer, Client, Gateway, PATIENCE, RawUpstream, Upstream, exchange};

/// An upstream that sends the cost as a trailer. HTTP/1.1 requires the `Trailer` header.
async fn upstream_with_trailers() -> Upstream {
    Upstream::answering(|seen| {
        let mut trailers = HeaderMap::new();
        let cost = seen.uri.path().rsplit('/').next().unwrap_or_default();
        trailers.insert("x-tollgate-cost", cost.parse().unwrap());
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        // Only a body of unknown length can have trailers. Language models stream such bodies.
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(4);
        let _ = sender.try_send(Frame::data(Bytes::from_static(b"some tokens")));
        let _ = sender.try_send(Frame::trailers(trailers));
        Response::builder().header("trailer", "x-tollgate-cost, x-sum").body(body.boxed()).unwrap()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn trailer_settles_the_cost() {
    for protocol in ["http1", "http2"] {
        let upstream = upstream_with_trailers().await;
        let lines = format!(
            "target: {{url: 'http://{}', protocol: {protocol}}}\n\
             strategy: sliding_window_log\n\
             apis:\n\
             - {{identifier: tokens, path: '/ai/*', limit: 1000, windowSeconds: 3600, \
                  reserve: {{units: 100, settle: body}}}}\n\
             - {{identifier: bytes, path: '/files/*', limit: 1000, windowSeconds: 3600, \
                  reserve: {{units: 100, settle: body, bytesPerUnit: 10}}}}\n",
            upstream.address
        );
        let (gateway, client) = Gateway::with_client(&lines);
        // Each response reports the units that remain after the previous request was settled, minus
        // its own estimate.
        for (path, left) in [
            ("/ai/30", "900"),
            ("/ai/400", "870"),
            ("/ai/much", "470"),
            ("/ai/0", "370"),
            // 11 bytes are rounded up to two units.
            ("/files/5", "900"),
            ("/files/5", "898"),
        ] {
            let answer = client.get(path).await;
            assert_eq!(answer.body, "some tokens");
            let told = answer.header("x-ratelimit-remaining");
            assert_eq!(told, left, "{protocol} {path}");
        }
        // The gateway removes the cost but forwards other trailers.
        let raw = exchange(
            gateway.address,
            "GET /ai/7 HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te, close\r\n\r\n",
        );
        assert!(raw.ends_with("x-sum: 7\r\n\r\n"), "{protocol} {raw}");
        assert!(!raw.contains("x-tollgate-cost: "), "{protocol} {raw}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_the_guess_limit() {
    let upstream = Upstream::answering(|_| {
        Response::builder().status(401).body(Full::from("told").boxed()).unwrap()
    })
    .await;
    let redis = Redis::start();
    let lines = format!(
        "{}store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         apis:\n\
         - {{identifier: login, path: /login, strategy: sliding_window_log, \
              limit: 5, windowSeconds: 3600, countOnly: {{status: 401}}}}\n\
         - {{identifier: other, path: /other, strategy: sliding_window_log, \
              limit: 5, windowSeconds: 3600, countOnly: {{status: 200}}}}\n",
        upstream.target(),
        redis.url()
    );
    let gateways = [Gateway::start(&lines), Gateway::start(&lines)];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let mut guesses = JoinSet::new();
    for n in 0..200 {
        let client = clients[n % 2].clone();
        guesses.spawn(async move { client.get("/login").await.status.as_u16() });
    }
    let statuses = guesses.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
    assert_eq!(upstream.seen().len(), 5);
    // Responses that do not count are refunded, so more requests than the limit pass.
    for n in 0..12 {
        assert_eq!(clients[n % 2].get("/other").await.status, 401, "{n}");
    }
    // A response already includes its own refund, while others may still be on their way to Redis.
    let are_refunded = || async {
        let answer = clients[0].get("/other").await;
        (answer.header("x-ratelimit-remaining") == "5").then_some(())
    };
    until_async("the refunds", PATIENCE, are_refunded).await;
}

/// A success forgives on all gateways what only its client has used.
#[tokio::test(flavor = "multi_thread")]
async fn successes_forgive_guesses() {
    let upstream = Upstream::answering(|seen| {
        let status = if seen.uri.query() == Some("right") { 204 } else { 401 };
        Response::builder().status(status).body(Full::from("").boxed()).unwrap()
    })
    .await;
    let redis = Redis::start();
    let lines = format!(
        "{}store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         trustedProxies: [127.0.0.1]\n\
         apis: [{{identifier: login, path: /login, strategy: sliding_window_log, limit: 5, \
                 window: 240h, countOnly: {{status: 401}}, forgiveOn: {{status: 2xx}}, \
                 penalty: {{strikes: 8, within: 240h, of: failures}}}}]\n",
        upstream.target(),
        redis.url()
    );
    let gateways = [Gateway::start(&lines), Gateway::start(&lines)];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let guess = |gateway: usize, address: &'static str, path: &'static str| {
        let client = clients[gateway].clone();
        let forwarded = [("x-forwarded-for", address)];
        async move { client.send("GET", path, &forwarded, "").await.unwrap() }
    };
    let (owner, stranger) = ("203.0.113.1", "203.0.113.2");
    for address in [owner, stranger] {
        for n in 0..4 {
            assert_eq!(guess(n % 2, address, "/login").await.status, 401);
        }
    }
    assert_eq!(guess(0, owner, "/login?right").await.status, 204);
    // Another right guess could forgive the wrong ones below, too.
    let is_forgiven = || async {
        let of_owner = gateways[1].operate("GET", &format!("/subjects/ip:{owner}")).await.json();
        let policies = of_owner["policies"].as_array().unwrap();
        // The limit, its penalty, and preflights.
        assert_eq!(policies.len(), 3, "{of_owner}");
        policies.iter().all(|it| it["remaining"] == it["limit"]).then_some(())
    };
    until_async("the forgiveness", PATIENCE, is_forgiven).await;
    let mut guesses = JoinSet::new();
    for n in 0..150 {
        guesses.spawn(guess(n % 2, owner, "/login"));
    }
    let answers = guesses.join_all().await;
    let wrong = |answer: &&Answer| answer.status == 401;
    assert_eq!(answers.iter().filter(wrong).count(), 5, "the strikes were forgiven, too");
    assert_eq!(guess(0, stranger, "/login").await.status, 401);
    assert_eq!(guess(1, stranger, "/login").await.status, 429);
}

/// Only the service's response could have shown whether the guess was wrong.
#[tokio::test(flavor = "multi_thread")]
async fn missing_response_counts_as_a_failure() {
    for (upstream, response, status) in [
        // The service reads the request and then remains silent or disconnects.
        (RawUpstream::answering(""), "300ms", 504),
        (RawUpstream::closing(""), "60s", 502),
        (RawUpstream::closing("HTTP/1.1 40"), "60s", 502),
    ] {
        let lines = format!(
            "{}timeouts: {{response: {response}}}\n\
             apis:\n\
             - {{identifier: login, path: /login, limit: 2, windowSeconds: 3600, \
                  countOnly: {{status: 401}}}}\n",
            upstream.target()
        );
        let (_gateway, client) = Gateway::with_client(&lines);
        for expected in [status, status, 429] {
            let answer = client.send("POST", "/login", &[], "guess").await.unwrap();
            assert_eq!(answer.status, expected, "{answer:?}");
        }
    }
    // A request that the service never received was not a guess.
    let gateway = Gateway::start(
        "target: http://127.0.0.1:1\n\
         apis: [{identifier: login, path: /login, limit: 2, windowSeconds: 3600, \
                 countOnly: {status: 401}}]\n",
    );
    for _ in 0..4 {
        let answer = Client::new(gateway.address).get("/login").await;
        assert_eq!((answer.status.as_u16(), &*answer.code()), (502, "upstream-unreachable"));
    }
}
