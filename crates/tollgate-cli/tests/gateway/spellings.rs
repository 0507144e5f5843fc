//! Paths that two servers could interpret differently.

use crate::support::{Client, Gateway, Upstream, exchange};

/// A login with a strict limit, exempt paths, and paths with their own limit.
fn lines(upstream: &Upstream, ambiguous: &str) -> String {
    format!(
        "{}strategy: sliding_window_log\n\
         paths: {{ambiguous: {ambiguous}}}\n\
         exempt: [/static/*, {{expression: regex, value: '^/assets/'}}]\n\
         client: {{limit: 1000, windowSeconds: 3600}}\n\
         costs: {{paths: [{{path: /login, cost: 100}}]}}\n\
         apis:\n\
         - {{identifier: login, path: /login, limit: 200, windowSeconds: 3600}}\n\
         - {{identifier: files, path: '/files/*', limit: 5000, windowSeconds: 3600}}\n",
        upstream.target()
    )
}

/// Some servers resolve these to `/login`.
const LOGIN: [&str; 22] = [
    "/static/..%2Flogin",
    "/static/..%2flogin",
    "/static%2F..%2Flogin",
    "/static/%2e%2e%2flogin",
    "/static/%2E%2E%5Clogin",
    "/static/..\\login",
    "/static/..%3B/login",
    "/static/..%3b%2flogin",
    "/static/.%2e;x/login",
    "/static/..;/login",
    "/static/../login",
    "/assets/..%2Flogin",
    "/assets%5C..%2Flogin",
    "/x/..%2F..%5C..%2Flogin",
    "/%2Flogin",
    "/login%3Bx",
    "/login;x",
    // Only for servers that treat `\` as an ordinary character.
    "/a%5Cb%2F..%2Flogin",
    // Only for servers that decode the path twice.
    "/lo%2567in",
    "/lo%25%36%37in",
    "/lo%252567in",
    "/static/%252E%252E/login",
];

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_paths_meet_the_strictest_limit() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, "keep"));
    let mut answers = Vec::new();
    for path in LOGIN {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(gateway.address, &request);
        answers.push((path, answer["HTTP/1.1 ".len()..][..3].to_owned()));
    }
    let (passed, denied) = answers.split_at(2);
    assert!(passed.iter().all(|(_, status)| status == "200"), "{answers:?}");
    assert!(denied.iter().all(|(_, status)| status == "429"), "{answers:?}");
    assert_eq!(upstream.seen().len(), 2);
    // Unambiguous paths are still exempt.
    for path in ["/static/a.css", "/assets/%C3%A9", "/static/x/../b;v=1"] {
        let answer = Client::new(gateway.address).get(path).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit")), (200, ""));
    }
}

/// A service behind another proxy may decode the path twice.
#[tokio::test(flavor = "multi_thread")]
async fn double_escaped_or_non_utf8_paths_are_not_exempt() {
    let upstream = Upstream::new().await;
    let (_gateway, client) = Gateway::with_client(&lines(&upstream, "reject"));
    for path in ["/static/..%252Flogin", "/static/%252e%252e/login", "/static/..%C0%AFlogin"] {
        assert!(tollgate::limit::Paths::is_ambiguous(path));
        let answer = client.get(path).await;
        assert_ne!(answer.header("x-ratelimit-limit"), "", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spellings_do_not_evade_forward_auth() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "forwardAuth: {{listen: 127.0.0.1:0, trustedProxies: [127.0.0.1]}}\n{}",
        lines(&upstream, "keep")
    );
    for front in ["/forward-auth", "/auth-request", "/ext-authz"] {
        let gateway = Gateway::start(&lines);
        let ask = |method: &str, path: &str| {
            let target = if front == "/ext-authz" { path } else { "" };
            let asks = if front == "/ext-authz" { method } else { "GET" };
            let answer = exchange(
                gateway.fronts["forwardAuth"],
                &format!(
                    "{asks} {front}{target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                     X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {path}\r\n\
                     X-Forwarded-Host: a\r\nX-Original-Method: {method}\r\n\
                     X-Original-URI: {path}\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n"
                ),
            );
            // nginx reads the status from this header.
            let status = answer.split("tollgate-status: ").nth(1);
            status.unwrap_or_else(|| &answer["HTTP/1.1 ".len()..])[..3].to_owned()
        };
        for (index, path) in LOGIN.into_iter().enumerate() {
            let expected = if index < 2 { "200" } else { "429" };
            assert_eq!(ask("GET", path), expected, "{front} {path}");
        }
        for path in ["/files/..%2Flogin", "/login%00"] {
            assert_eq!(ask("GET", path), "400", "{front} {path}");
        }
        for method in ["TRACE", "Trace"] {
            assert_eq!(ask(method, "/a"), "405", "{front} {method}");
        }
    }
    assert_eq!(upstream.seen().len(), 0);
}
