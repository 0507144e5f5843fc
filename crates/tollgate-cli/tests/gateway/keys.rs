//! Clients identified by a header, a cookie, or a query parameter.

use crate::support::{Gateway, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn header_cookie_or_parameter_identifies_the_client() {
    let upstream = Upstream::new().await;
    for (key, requests) in [
        ("header", [("/", "x-id", "a"), ("/", "x-id", "b")]),
        ("cookie", [("/", "cookie", "y=1; x-id=a"), ("/", "cookie", "x-id=b")]),
        ("query", [("/?x-id=a", "x", "1"), ("/?x-id=b", "x", "1")]),
    ] {
        let (_gateway, client) = Gateway::with_client(
            &format!(
                "{}client: {{limit: 1, windowSeconds: 3600}}\n\
             identity: [{{key: {key}, name: X-Id}}]\nonMissingKey: {{deny: 401}}\n",
                upstream.target()
            )
            .replace("X-Id", if key == "header" { "X-Id" } else { "x-id" }),
        );
        for (path, name, value) in requests {
            let mut statuses = Vec::new();
            // `Connection` cannot remove the header on the way to the service.
            for headers in [&[(name, value), ("connection", "x-id")][..], &[(name, value)]] {
                let answer = client.send("GET", path, headers, "").await.unwrap();
                statuses.push(answer.status.as_u16());
            }
            assert_eq!(statuses, [200, 429], "{key} {value}");
            if key == "header" {
                assert_eq!(upstream.last().header("x-id"), value);
            }
        }
        assert_eq!(client.get("/").await.status, 401, "{key}");
    }
}
