//! Configured limits from a client's point of view.

use crate::support::{Client, Gateway, Upstream, sha256};

const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "http://other.example"), ("access-control-request-method", "PUT")];

#[tokio::test(flavor = "multi_thread")]
async fn preflights_are_free_by_default() {
    let upstream = Upstream::new().await;
    for (line, last) in
        [("", 200), ("preflights: unlimited\n", 200), ("preflights: charged\n", 429)]
    {
        let client = "client: {limit: 1, windowSeconds: 3600}\n";
        let (_gateway, client) =
            Gateway::with_client(&format!("{}{client}{line}", upstream.target()));
        for expected in [200, last] {
            let answer = client.send("OPTIONS", "/", &PREFLIGHT, "").await.unwrap();
            assert_eq!(answer.status, expected, "{line}");
        }
        // A request with only some of the headers is not a preflight.
        client.send("OPTIONS", "/", &PREFLIGHT[..1], "").await.unwrap();
        let answer = client.send("OPTIONS", "/", &PREFLIGHT[..1], "").await.unwrap();
        assert_eq!(answer.status, 429);
    }
}

/// Browsers send preflights without credentials, so only the address tells clients apart.
#[tokio::test(flavor = "multi_thread")]
async fn preflights_are_limited_by_address() {
    let upstream = Upstream::new().await;
    let key =
        "apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]";
    for identity in ["identity: ip\n".to_owned(), format!("identity: apiKey\n{key}\n")] {
        let (_gateway, client) = Gateway::with_client(&format!(
            "{}{identity}preflights: 2\ntrustedProxies: [loopback]\n\
             client: {{limit: 1, windowSeconds: 3600}}\n",
            upstream.target()
        ));
        let ask = async |method, address, lines: &[(&str, &str)]| {
            let address = [("x-forwarded-for", address), ("x-api-key", "foo")];
            client.send(method, "/", &[&address[..], lines].concat(), "").await.unwrap()
        };
        let seen = upstream.seen().len();
        for _ in 0..2 {
            assert_eq!(ask("OPTIONS", "192.0.2.1", &PREFLIGHT).await.status, 200, "{identity}");
        }
        let denied = ask("OPTIONS", "192.0.2.1", &PREFLIGHT).await;
        assert_eq!(denied.status, 429, "{identity}");
        assert_eq!(denied.json()["violated-policies"][0], "cors/preflights");
        assert_eq!(upstream.seen().len(), seen + 2);
        assert_eq!(ask("OPTIONS", "192.0.2.2", &PREFLIGHT).await.status, 200, "{identity}");
        // The client's own quota is unchanged.
        assert_eq!(ask("GET", "192.0.2.1", &[]).await.status, 200, "{identity}");
        assert_eq!(ask("GET", "192.0.2.1", &[]).await.status, 429, "{identity}");
    }
}

/// Methods are case-sensitive in HTTP, but some services ignore case.
#[tokio::test(flavor = "multi_thread")]
async fn method_spellings_share_limit_and_cost() {
    let upstream = Upstream::new().await;
    let lines = upstream.with(
        "strategy: sliding_window_log\n\
         client: {limit: 100, windowSeconds: 3600}\n\
         costs: {DELETE: 60, SEARCH: 30, GET: 5}\n\
         apis:\n\
         - {identifier: login, path: /login, method: POST, limit: 2, windowSeconds: 3600}\n",
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let mut statuses = Vec::new();
    for method in ["POST", "post", "Post", "pOST"] {
        let answer = client.send(method, "/login", &[], "").await.unwrap();
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(upstream.last().method, "post");
    // 98 units remain.
    for (method, left) in [("delete", "38"), ("head", "33"), ("query", "3")] {
        let answer = client.send(method, "/", &[], "").await.unwrap();
        assert_eq!(answer.header("x-ratelimit-remaining"), left, "{method}");
    }
}

/// If each route had its own copy, the limits would take several GiB.
#[tokio::test(flavor = "multi_thread")]
async fn routes_share_equal_limits() {
    let upstream = Upstream::new().await;
    let mut lines = upstream.target();
    lines.push_str("client: {limit: 100, windowSeconds: 3600}\ntiers:\n");
    for tier in 0..10 {
        lines.push_str(&format!("  t{tier}: {{limit: {}, windowSeconds: 60}}\n", 10 + tier));
    }
    lines.push_str("routes:\n");
    for route in 0..500 {
        lines.push_str(&format!(
            "- {{name: r{route}, path: /r{route}/*, target: 'http://{}'}}\n",
            upstream.address
        ));
    }
    lines.push_str("apis:\n");
    for api in 0..300 {
        lines.push_str(&format!(
            "- {{identifier: a{api}, path: {{expression: regex, value: '/a{api}$'}}, \
                limit: 1, windowSeconds: 3600}}\n"
        ));
    }
    let (gateway, client) = Gateway::with_client(&lines);
    for (path, status) in [("/r1/a7", 200), ("/r2/a7", 429), ("/r499/a8", 200), ("/a8", 429)] {
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
    assert!(gateway.peak_memory() < 100, "{} MiB", gateway.peak_memory());
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_request_charges_no_limit() {
    let upstream = Upstream::new().await;
    let lines = upstream.with(
        "strategy: sliding_window_log\n\
         global: {limit: 10, windowSeconds: 3600}\n\
         client: {limit: 5, windowSeconds: 3600}\n\
         apis:\n\
         - {identifier: a, path: /a, limit: 2, windowSeconds: 3600}\n\
         - {identifier: below, path: '/*', limit: 4, windowSeconds: 3600}\n\
         exempt: [/health]\n",
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let statuses = async |path: &'static str, times: usize| {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(client.get(path).await.status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses("/a", 4).await, [200, 200, 429, 429]);
    // The two denied requests were not charged to the client's five.
    assert_eq!(statuses("/b", 4).await, [200, 200, 200, 429]);
    let answer = client.get("/b").await;
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["client"]));
    assert_eq!(answer.header("ratelimit").split(',').count(), 3);
    assert_eq!(statuses("/health", 20).await, [200; 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_key_status_is_configurable() {
    let upstream = Upstream::new().await;
    let key = sha256("gold-key");
    let lines = format!(
        "{}identity: apiKey\n\
         apiKeys: {{scheme: Key, keys: [{{sha256: {key}}}]}}\n\
         onMissingKey: {{deny: 401}}\n\
         grpc: [/pkg.Service/*]\n\
         client: {{limit: 1, windowSeconds: 3600}}\n",
        upstream.target()
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    for made_up in [None, Some(("authorization", "Key made-up"))] {
        let answer = client.send("GET", "/", made_up.as_slice(), "").await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("www-authenticate")), (401, "Key"));
        let body = answer.json();
        assert_eq!((&body["status"], &body["code"]), (&401.into(), &"missing-key".into()));
    }
    let grpc = [("content-type", "application/grpc")];
    let answer = client.send("POST", "/pkg.Service/Call", &grpc, "").await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "16"));
    // On other paths, the content type has no effect.
    for path in ["/", "/api.v1/items", "/pkg.Service/../x"] {
        let answer = client.send("POST", path, &grpc, "").await.unwrap();
        assert_eq!(answer.headers.get("grpc-status"), None, "{path}");
        assert_eq!(answer.status, 401, "{path}");
    }
    assert!(upstream.seen().is_empty());
    // Other denials have their own status.
    let known = [("authorization", "Key gold-key")];
    for status in [200, 429] {
        let answer = client.send("GET", "/", &known, "").await.unwrap();
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers.get("www-authenticate"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_has_its_tier_quota() {
    let gold = sha256("gold-key");
    let plain = sha256("plain-key");
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         identity: [apiKey, ip]\n\
         apiKeys:\n\
         - {{sha256: {gold}, tier: gold}}\n\
         - {{sha256: {plain}}}\n\
         client: {{limit: 1, windowSeconds: 3600}}\n\
         tiers:\n  gold: {{limit: 3, windowSeconds: 3600}}\n",
        upstream.target()
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    for (key, statuses) in [
        ("gold-key", &[200, 200, 200, 429][..]),
        ("plain-key", &[200, 429]),
        // Unknown keys count by address, so inventing a key does not yield a new quota.
        ("made-up", &[200, 429]),
        ("another", &[429]),
    ] {
        for status in statuses {
            let answer = client.send("GET", "/", &[("x-api-key", key)], "").await.unwrap();
            assert_eq!(answer.status, *status, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unlimited_tier_lifts_client_quota_but_not_api_limits() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         identity: [apiKey, ip]\n\
         apiKeys:\n\
         - {{sha256: {}, tier: internal}}\n\
         client: {{limit: 2, windowSeconds: 3600, also: [{{limit: 9, windowSeconds: 9000}}]}}\n\
         tiers: {{internal: unlimited}}\n\
         apis:\n\
         - {{identifier: ai, path: /ai, share: 1/2}}\n\
         - {{identifier: login, path: /login, limit: 1, windowSeconds: 3600}}\n",
        upstream.target(),
        sha256("internal-key")
    );
    let (gateway, client) = Gateway::with_client(&lines);
    let key = [("x-api-key", "internal-key")];
    for (path, statuses) in
        [("/", [200; 12].as_slice()), ("/ai", &[200; 4]), ("/login", &[200, 429])]
    {
        for status in statuses {
            let answer = client.send("GET", path, &key, "").await.unwrap();
            assert_eq!(answer.status, *status, "{path}");
            let names_client = answer
                .headers
                .get_all("ratelimit-policy")
                .iter()
                .any(|value| value.to_str().unwrap().contains("client"));
            assert!(!names_client, "{path}");
        }
    }
    // Other clients have the configured quotas.
    for (path, status) in [("/ai", 200), ("/ai", 429), ("/", 200), ("/", 429)] {
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
    let config = gateway.admin("/config").await.json().to_string();
    assert!(config.contains("tier internal: unlimited"), "{config}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leaky_bucket_delays_requests() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&queue(&upstream, "500ms"));
    let started = std::time::Instant::now();
    let mut requests = requests(&gateway, 2);
    for _ in 0..2 {
        assert_eq!(requests.join_next().await.unwrap().unwrap(), 200);
    }
    // The queue forwards the second request 500 ms after the first.
    assert!(started.elapsed() >= std::time::Duration::from_millis(490));
}

/// A configuration with a queue for two requests, which forwards a request per `interval`.
fn queue(upstream: &Upstream, interval: &str) -> String {
    let global =
        format!("global: {{strategy: leaky_bucket, limit: 1, window: {interval}, burst: 2}}\n");
    upstream.target() + &global
}

/// The statuses of `count` requests, each over its own connection.
fn requests(gateway: &Gateway, count: usize) -> tokio::task::JoinSet<u16> {
    let clients = (0..count).map(|_| Client::new(gateway.address));
    clients.map(|client| async move { client.get("/").await.status.as_u16() }).collect()
}
