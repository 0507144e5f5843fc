//! Access control: the token, hosts and sites.

use axum::body::Body;
use http::Request;
use tollgate::Limit;
use tollgate_admin::{Admin, AdminError};

use crate::support::*;
use crate::{TOKEN, admin, send};

#[test]
fn weak_tokens_do_not_build() {
    let build = |token: Option<&str>| {
        let builder = Admin::builder();
        let builder = if let Some(token) = token { builder.token(token) } else { builder };
        builder.build().map(|_| ()).unwrap_err()
    };
    assert_eq!(build(None), AdminError::NoToken);
    for weak in ["", "short", "0123456789abcde", "with a space in it", "mit-Umläuten-darin"] {
        let error = build(Some(weak));
        assert_eq!(error, AdminError::WeakToken, "{weak}");
        assert!(weak.is_empty() || !error.to_string().contains(weak));
    }
    for host in ["admin.local:80", "http://admin.local", "a b", ""] {
        let error = Admin::builder().token(TOKEN).allow_host(host).build().map(|_| ());
        assert_eq!(error, Err(AdminError::Host(host.to_owned())));
    }
}

#[tokio::test]
async fn subjects_and_changes_need_the_token() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))]));
    let ask = async |method: &str, path: &str, authorization: &[&str]| {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for value in authorization {
            request = request.header("authorization", *value);
        }
        // The peer address grants no access.
        let request = from_peer(1, request.body(Body::empty()).unwrap());
        send(&admin, request).await
    };
    let right = format!("Bearer {TOKEN}");
    for (method, path) in [
        ("GET", "/status/all/global"),
        ("HEAD", "/status/all/global"),
        ("DELETE", "/status/all/global"),
        ("POST", "/status/all/global"),
        ("GET", "/status/no-such/global"),
        ("GET", "/subjects/global"),
        ("GET", "/top"),
    ] {
        for wrong in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcdeF"],
            &["Bearer 0123456789abcdef0"],
            &["Basic 0123456789abcdef"],
            &[TOKEN],
            &[&right, &right],
        ] {
            let response = ask(method, path, wrong).await;
            assert_eq!(response.status(), 401, "{method} {path} {wrong:?}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
        let response = ask(method, path, &[&right]).await;
        assert_ne!(response.status(), 401, "{method} {path}");
    }
    assert_eq!(ask("GET", "/status", &[]).await.status(), 200);
}

#[tokio::test]
async fn foreign_sites_are_rejected() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("all", 9))]);
    let admin = Admin::builder().token(TOKEN).layer(&layer).allow_host("admin.local");
    let admin = admin.allow_host("fd00::1").build().unwrap();
    for (headers, expected) in [
        (&[("host", "localhost")][..], 200),
        (&[("host", "LOCALHOST:9000")], 200),
        (&[("host", "127.0.0.1:9000")], 200),
        (&[("host", "[::1]:9000")], 200),
        (&[("host", "admin.local.")], 200),
        (&[("host", "[fd00::1]:9000")], 200),
        // DNS rebinding: the attacker's name resolves to this address.
        (&[("host", "rebound.example")], 421),
        (&[("host", "localhost.rebound.example")], 421),
        (&[("host", "10.0.0.7")], 421),
        (&[], 400),
        (&[("host", "localhost"), ("host", "localhost")], 400),
        (&[("host", "eve@localhost")], 400),
        (&[("host", "localhost"), ("origin", "https://evil.example")], 403),
        (&[("host", "localhost"), ("origin", "null")], 403),
        (&[("host", "localhost"), ("origin", "http://localhost:8000")], 403),
        (&[("host", "localhost:9000"), ("origin", "http://localhost:9000")], 200),
        (&[("host", "localhost"), ("sec-fetch-site", "cross-site")], 403),
        (&[("host", "localhost"), ("sec-fetch-site", "same-site")], 403),
        (&[("host", "localhost"), ("sec-fetch-site", "same-origin")], 200),
    ] {
        // A valid token does not bypass the site check.
        let mut request = Request::builder().uri("/status");
        request = request.header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = send(&admin, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), expected, "{headers:?}");
        assert!(!response.headers().contains_key("access-control-allow-origin"));
    }
    for (admin, cure) in [
        (Admin::builder(), "add it to `AdminBuilder::allow_host`, or use localhost. [TG0417]"),
        (Admin::builder().hosts_setting("ADMIN_HOSTS"), "add it to ADMIN_HOSTS, or use"),
    ] {
        let admin = admin.token(TOKEN).build().unwrap();
        let request = Request::builder().uri("/status").header("host", "10.0.0.7");
        let response = send(&admin, request.body(Body::empty()).unwrap()).await;
        let body = text(response).await;
        assert!(body.contains(cure), "{body}");
    }
    // In HTTP/2 the target contains the host.
    for (uri, expected) in [("http://localhost/status", 200), ("http://evil.example/status", 421)] {
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        assert_eq!(send(&admin, request).await.status(), expected, "{uri}");
    }
}

/// A program can send any `Host`, including `localhost`, so the host check is not enough.
#[tokio::test]
async fn numbers_can_need_the_token() {
    const PEER: &str = "http://127.0.0.1:9101";
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("all", 9))]);
    let further = axum::Router::new().route("/config", axum::routing::get(|| async { "secret" }));
    let admin = Admin::builder().token(TOKEN).layer(&layer).metrics(String::new).further(further);
    let admin = admin.peer(PEER).numbers_need_token().build().unwrap();
    let ask = async |method: &str, path: &str, fields: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        send(&admin, request.body(Body::empty()).unwrap()).await
    };
    let token = format!("Bearer {TOKEN}");
    for path in ["/status", "/metrics", "/events", "/top", "/config"] {
        assert_eq!(ask("GET", path, &[]).await.status(), 401, "{path}");
        let wrong = [("authorization", "Bearer 0123456789abcdeF")];
        assert_eq!(ask("GET", path, &wrong).await.status(), 401, "{path}");
        assert_eq!(ask("GET", path, &[("authorization", &token)]).await.status(), 200, "{path}");
    }
    // Without a token, a client cannot find out which paths exist.
    assert_eq!(ask("GET", "/no-such", &[]).await.status(), 401);
    // Browsers open a page without a token.
    for path in ["/", "/page/main.js", "/page/settings.json"] {
        assert_eq!(ask("GET", path, &[]).await.status(), 200, "{path}");
    }
    // A peer's page may read why its request was rejected.
    let preflight = [("origin", PEER), ("access-control-request-method", "GET")];
    assert_eq!(ask("OPTIONS", "/events", &preflight).await.status(), 204);
    let refused = ask("GET", "/events", &[("origin", PEER)]).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["access-control-allow-origin"], PEER);
}
