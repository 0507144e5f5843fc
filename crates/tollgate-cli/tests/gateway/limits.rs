//! Configured limits from a client's point of view.

use crate::support::{Gateway, Upstream, sha256};

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
