//! Policies for products, as clients and services meet them.

use std::convert::Infallible;
use std::fs;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::{Client, Gateway, Upstream, exchange, whole};

/// `ok`, at the cost that the path ends in: `/a/7` is 7.
async fn upstream_with_a_price() -> Upstream {
    Upstream::answering(|seen| {
        let cost = seen.uri.path().rsplit('/').next().unwrap_or_default();
        let response = Response::builder().header("x-tollgate-cost", cost);
        response.body(Full::from("ok").boxed()).unwrap()
    })
    .await
}

fn sha256(text: &str) -> String {
    let sum = std::process::Command::new("bash")
        .args(["-c", &format!("printf %s {text} | sha256sum")])
        .output()
        .unwrap();
    String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_quotas_of_a_tier_hold_at_the_same_time() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         identity: [apiKey, ip]\n\
         apiKeys:\n\
         - {{sha256: {}, tier: free}}\n\
         - {{sha256: {}, tier: pro}}\n\
         client: {{limit: 1, windowSeconds: 3600}}\n\
         tiers:\n  \
           free: {{limit: 8, windowSeconds: 3600, also: [{{limit: 3, windowSeconds: 1800}}]}}\n  \
           pro: {{limit: 20, windowSeconds: 3600}}\n\
         apis:\n\
         - {{identifier: ai, path: /ai, share: 1/4}}\n",
        upstream.target(),
        sha256("free-key"),
        sha256("pro-key")
    );
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
    let ask = async |key: &str, path: &str| {
        let answer = client.send("GET", path, &[("x-api-key", key)], "").await.unwrap();
        let denied_by = (answer.status == 429).then(|| answer.json()["violated-policies"].clone());
        denied_by.unwrap_or_default()
    };
    for (key, path, denied_by) in [
        ("free-key", "/", serde_json::json!(null)),
        // A quarter of 3 is less than one request, and a quota has at least one.
        ("free-key", "/ai", serde_json::json!(null)),
        ("free-key", "/ai", serde_json::json!(["ai/2"])),
        ("free-key", "/", serde_json::json!(null)),
        ("free-key", "/", serde_json::json!(["client/2"])),
        ("nobody", "/", serde_json::json!(null)),
        ("nobody", "/", serde_json::json!(["client"])),
        ("pro-key", "/", serde_json::json!(null)),
    ] {
        assert_eq!(ask(key, path).await, denied_by, "{key} {path}");
    }
    // Whoever has one quota is told of one.
    let answer = client.send("GET", "/", &[("x-api-key", "pro-key")], "").await.unwrap();
    assert_eq!(answer.header("ratelimit").split(',').count(), 1);
    assert_eq!(answer.header("x-ratelimit-remaining"), "18");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_wrong_passwords_at_once_exactly_five_are_tried() {
    let upstream = Upstream::answering(|seen| {
        let status = if seen.body == "sesame" { 200 } else { 401 };
        Response::builder().status(status).body(Full::from("told").boxed()).unwrap()
    })
    .await;
    let lines = format!(
        "{}apis:\n\
         - {{identifier: login, path: /login, method: POST, strategy: sliding_window_log, \
              limit: 5, windowSeconds: 3600, countOnly: {{status: 401}}}}\n",
        upstream.target()
    );
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
    for _ in 0..20 {
        let answer = client.send("POST", "/login", &[], "sesame").await.unwrap();
        // What the client has left, and not what it had while it was being tried.
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-remaining")), (200, "5"));
    }
    let mut guesses = JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        guesses.spawn(async move {
            client.send("POST", "/login", &[], "guess").await.unwrap().status.as_u16()
        });
    }
    let mut statuses = guesses.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses[..5], [401; 5]);
    assert!(statuses[5..].iter().all(|status| *status == 429), "{statuses:?}");
    assert_eq!(upstream.seen().iter().filter(|seen| seen.body == "guess").count(), 5);
    // Somebody with the right one has to wait as well: there is no telling before.
    let answer = client.send("POST", "/login", &[], "sesame").await.unwrap();
    assert_eq!(answer.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_says_what_a_request_has_cost() {
    let upstream = upstream_with_a_price().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         exempt: [/free/7]\n\
         apis:\n\
         - {{identifier: tokens, path: '/ai/*', limit: 1000, windowSeconds: 3600, \
              reserve: {{units: 100}}}}\n",
        upstream.target()
    );
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
    for (path, left) in [
        ("/ai/30", "970"),
        ("/ai/0", "970"),
        ("/ai/400", "570"),
        // No number: the estimate stands.
        ("/ai/much", "470"),
        ("/ai/440", "30"),
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.header("x-ratelimit-remaining"), left, "{path}");
        assert!(!answer.headers.contains_key("x-tollgate-cost"), "{path}");
    }
    // There is less than the estimate.
    assert_eq!(client.get("/ai/1").await.status, 429);
    // The field is between us and the upstream, also where nothing is reserved.
    for path in ["/free/7", "/other/7"] {
        assert!(!client.get(path).await.headers.contains_key("x-tollgate-cost"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_reservation_the_cost_is_for_somebody_further_out() {
    let upstream = upstream_with_a_price().await;
    let lines = format!("{}client: {{limit: 9, windowSeconds: 3600}}\n", upstream.target());
    let gateway = Gateway::start(&lines);
    let answer = Client::new(gateway.address).get("/7").await;
    assert_eq!(answer.header("x-tollgate-cost"), "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_excess_waits_and_whoever_would_wait_too_long_is_refused_at_once() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         apis:\n\
         - {{identifier: soon, path: /soon, limit: 1, window: 300ms, excess: {{wait: 60s}}}}\n\
         - {{identifier: late, path: /late, limit: 1, window: 1h, excess: {{wait: 60s}}}}\n",
        upstream.target()
    );
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
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

/// Over HTTP/1.1 trailers have to be announced.
async fn upstream_with_trailers() -> Upstream {
    Upstream::answering(|seen| {
        let mut trailers = HeaderMap::new();
        let cost = seen.uri.path().rsplit('/').next().unwrap_or_default();
        trailers.insert("x-tollgate-cost", cost.parse().unwrap());
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        // Of unknown length, as a model streams it: what states its length has no trailers.
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(4);
        let _ = sender.try_send(Frame::data(Bytes::from_static(b"some tokens")));
        let _ = sender.try_send(Frame::trailers(trailers));
        Response::builder().header("trailer", "x-tollgate-cost, x-sum").body(body.boxed()).unwrap()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_body_says_what_a_request_has_cost() {
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
        let gateway = Gateway::start(&lines);
        let client = Client::new(gateway.address);
        // Each tells what is left after the one before, less its own estimate.
        for (path, left) in [
            ("/ai/30", "900"),
            ("/ai/400", "870"),
            ("/ai/much", "470"),
            ("/ai/0", "370"),
            // 11 bytes are two units of ten.
            ("/files/5", "900"),
            ("/files/5", "898"),
        ] {
            let answer = client.get(path).await;
            assert_eq!(answer.body, "some tokens");
            let told = answer.header("x-ratelimit-remaining");
            assert_eq!(told, left, "{protocol} {path}");
        }
        // The cost is for us, whatever else is for the client.
        let raw = exchange(
            gateway.address,
            "GET /ai/7 HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te, close\r\n\r\n",
        );
        assert!(raw.ends_with("x-sum: 7\r\n\r\n"), "{protocol} {raw}");
        assert!(!raw.contains("x-tollgate-cost: "), "{protocol} {raw}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_denied_reach_nothing_and_the_allowed_are_never_limited() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("deny.txt");
    fs::write(&file, "203.0.113.0/24 # a botnet\nsha256:0000\n").unwrap();
    let lines = format!(
        "{}trustedProxies: [loopback]\n\
         identity: {{key: ip, header: X-Forwarded-For}}\n\
         client: {{limit: 1, windowSeconds: 3600}}\n\
         exempt: [/health]\n\
         deny: {{file: deny.txt, addresses: ['2001:db8:bad::/48']}}\n\
         allow:\n  apiKeys: [{{sha256: {}}}]\n  addresses: [198.51.100.0/24]\n",
        upstream.target(),
        sha256("partner")
    );
    // What the file says is checked like the rest.
    fs::write(folder.path().join("limits.yaml"), whole(&lines)).unwrap();
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--config", "limits.yaml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("deny.txt: line 2: after `sha256:` expected 64 hex digits"), "{told}");

    fs::write(&file, "203.0.113.0/24 # a botnet\n").unwrap();
    let gateway = Gateway::start_in(folder, &lines);
    let client = Client::new(gateway.address);
    let ask = async |from: &str, path: &str, key: &str| {
        let headers = [("x-forwarded-for", from), ("x-api-key", key)];
        let answer = client.send("GET", path, &headers, "").await.unwrap();
        (answer.status.as_u16(), if answer.status == 200 { String::new() } else { answer.code() })
    };
    let fine = || (200, String::new());
    let denied = || (403, "denied-subject".to_owned());
    for (from, path, key, expected) in [
        ("192.0.2.1", "/", "", fine()),
        ("192.0.2.1", "/", "", (429, "quota-exceeded".to_owned())),
        ("192.0.2.1", "/", "partner", fine()),
        ("198.51.100.7", "/", "", fine()),
        ("198.51.100.7", "/", "", fine()),
        ("203.0.113.9", "/", "partner", denied()),
        ("203.0.113.9", "/health", "", denied()),
        ("2001:db8:bad:7::1", "/", "", denied()),
        ("2001:db8:bed::1", "/", "", fine()),
    ] {
        assert_eq!(ask(from, path, key).await, expected, "{from} {path} {key}");
    }
    let reached = upstream.seen().len();
    assert_eq!(reached, 5);
    let metrics = String::from_utf8(gateway.admin("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("tollgate_listed_requests_total{list=\"deny\"} 3"), "{metrics}");

    // The file is watched like the configuration.
    fs::write(gateway.file("new.txt"), "192.0.2.0/24\n").unwrap();
    fs::rename(gateway.file("new.txt"), gateway.file("deny.txt")).unwrap();
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(ask("203.0.113.9", "/", "").await, fine());
    assert_eq!(ask("192.0.2.9", "/", "").await, denied());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_finds_no_room_to_wait_is_refused() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         waiting: {{requests: 1}}\n\
         client: {{limit: 1, window: 2s, excess: {{wait: 60s}}}}\n\
         apis:\n\
         - {{identifier: other, path: /other, limit: 100, window: 60s}}\n",
        upstream.target()
    );
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
    assert_eq!(client.get("/").await.status, 200);
    let mut asked = JoinSet::new();
    for path in ["/", "/other", "/"] {
        let client = client.clone();
        asked.spawn(async move { client.get(path).await.status.as_u16() });
    }
    let mut statuses = asked.join_all().await;
    statuses.sort_unstable();
    // One room for the requests of all apis.
    assert_eq!(statuses, [200, 429, 429]);
}
