//! Configured limits from a client's point of view.

use crate::support::{Gateway, Upstream};

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
