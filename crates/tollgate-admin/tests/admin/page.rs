//! The live page: its files and headers, and its stream.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tollgate::{Limit, RateLimitLayer};
use tollgate_admin::{Admin, AdminBuilder, AdminError};
use tower::{Layer, ServiceExt};

use crate::support::*;

const TOKEN: &str = "0123456789abcdef";
const PEER: &str = "http://127.0.0.1:9101";

fn admin<St: tollgate::observe::Inspect>(layer: &RateLimitLayer<St>) -> AdminBuilder {
    Admin::builder().token(TOKEN).layer(layer).name("api1").peer(PEER)
}

async fn ask(router: &Router, method: &str, path: &str, fields: &[(&str, &str)]) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:9100");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// The stream's next line, or `None` if it has closed.
async fn line(response: &mut Response<Body>) -> Option<Value> {
    let frame = response.body_mut().frame().await?.unwrap();
    let data = frame.into_data().unwrap();
    let text = std::str::from_utf8(&data).unwrap();
    assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "{text}");
    Some(serde_json::from_str(text).unwrap())
}

#[tokio::test]
async fn page_loads_only_its_own_files() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("all", 9))]);
    let admin = admin(&layer).buttons("http://127.0.0.1:8080").build().unwrap();
    let page = ask(&admin, "GET", "/", &[]).await;
    assert_eq!(page.status(), 200);
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    for rule in [
        "default-src 'none';",
        "script-src 'self';",
        "style-src 'self';",
        "connect-src 'self' http://127.0.0.1:9101 http://127.0.0.1:8080;",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(rule), "{rule} is not in {policy}");
    }
    assert!(!policy.contains("unsafe"));
    let html = text(page).await;
    // All files that the page refers to exist on this router.
    let mut named = 0;
    for attribute in ["href=\"", "src=\""] {
        for rest in html.split(attribute).skip(1) {
            let path = rest.split('"').next().unwrap();
            assert!(path.starts_with('/') && !path.starts_with("//"), "{path}");
            let file = ask(&admin, "GET", path, &[]).await;
            assert_eq!(file.status(), 200, "{path}");
            assert!(path == "/status" || file.headers()["x-content-type-options"] == "nosniff");
            named += 1;
        }
    }
    assert!(named >= 4, "{named}");
    for (at, _) in html.match_indices("=\"") {
        let name = html[..at].rsplit([' ', '\n']).next().unwrap();
        assert!(name != "style" && !name.starts_with("on"), "{name} would be inline");
    }
    let settings = text(ask(&admin, "GET", "/page/settings.json", &[]).await).await;
    let settings: Value = serde_json::from_str(&settings).unwrap();
    assert_eq!(settings, json!({ "peers": [PEER], "target": "http://127.0.0.1:8080" }));
    // The site and method checks apply to the page too.
    assert_eq!(ask(&admin, "GET", "/", &[("origin", PEER)]).await.status(), 403);
    assert_eq!(ask(&admin, "POST", "/", &[]).await.status(), 405);
}

#[test]
fn invalid_addresses_are_rejected() {
    let builder = || Admin::builder().token(TOKEN);
    let wrong = || "http://api1; script-src *".to_owned();
    let error = builder().peer(wrong()).build().map(|_| ());
    assert_eq!(error, Err(AdminError::Peer(wrong())));
    let error = builder().buttons(wrong()).build().map(|_| ());
    assert_eq!(error, Err(AdminError::Target(wrong())));
}

#[tokio::test(start_paused = true)]
async fn stream_sends_one_line_per_second() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("all", 2))]);
    let service = layer.clone().layer(hello());
    let admin = admin(&layer).build().unwrap();
    let token = format!("Bearer {TOKEN}");
    let mut stream = ask(&admin, "GET", "/events", &[]).await;
    let mut told = ask(&admin, "GET", "/events", &[("authorization", &token)]).await;
    assert_eq!(stream.headers()["content-type"], "application/x-ndjson");
    let first = line(&mut stream).await.unwrap();
    assert_eq!((&first["server"], &first["policies"][0]["remaining"]), (&json!("api1"), &json!(2)));
    let started = tokio::time::Instant::now();
    for expected in [200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    let second = line(&mut stream).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(1));
    assert_eq!(second["policies"][0]["remaining"], 0);
    assert_eq!(second["policies"][0]["decisions"]["deny"], 1);
    assert_eq!(second["instance"], first["instance"]);
    assert!(second["uptime"].as_f64().unwrap() >= first["uptime"].as_f64().unwrap() + 1.0);
    // The denied clients are shown only with the token.
    assert_eq!(second["top"], Value::Null);
    assert_eq!(line(&mut told).await.unwrap()["top"][0]["denied"], json!([]));
    let top = line(&mut told).await.unwrap()["top"][0]["denied"].clone();
    assert_eq!((&top[0]["subject"], &top[0]["count"]), (&json!("global"), &json!(1)));
    for wrong in ["Bearer 0123456789abcdeF", "Bearer", ""] {
        let answer = ask(&admin, "GET", "/events", &[("authorization", wrong)]).await;
        assert_eq!(answer.status(), 401, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_limited_and_idle_readers_dropped() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))])).build().unwrap();
    let mut streams = Vec::new();
    for _ in 0..16 {
        let stream = ask(&admin, "GET", "/events", &[]).await;
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    let full = ask(&admin, "GET", "/events", &[]).await;
    assert_eq!(full.status(), 503);
    assert!(text(full).await.contains("16 streams are open"));
    // When a page closes, another page can open immediately.
    streams.pop();
    tokio::time::sleep(Duration::from_millis(1)).await;
    streams.push(ask(&admin, "GET", "/events", &[]).await);
    assert_eq!(streams.last().unwrap().status(), 200);
    // A single page continues to read, and the others stop.
    let mut reader = streams.remove(0);
    for _ in 0..30 {
        assert!(line(&mut reader).await.is_some());
    }
    for stream in &mut streams {
        // The buffered lines arrive, then the stream closes.
        while line(stream).await.is_some() {}
    }
    assert!(line(&mut reader).await.is_some());
    assert_eq!(ask(&admin, "GET", "/events", &[]).await.status(), 200);
}

/// A socket or a proxy may buffer lines for a long time after its reader hangs.
#[tokio::test(start_paused = true)]
async fn stream_closes_after_ten_minutes() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))])).build().unwrap();
    let started = tokio::time::Instant::now();
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(ask(&admin, "GET", "/events", &[]).await);
    }
    let mut lines = 0;
    'reading: loop {
        for stream in &mut streams {
            if line(stream).await.is_none() {
                break 'reading;
            }
            lines += 1;
        }
    }
    assert_eq!(started.elapsed(), Duration::from_secs(600));
    assert!(lines >= 16 * 600, "{lines}");
    // The other streams close at the same instant, but their tasks must run first.
    tokio::time::sleep(Duration::from_millis(1)).await;
    for _ in 0..16 {
        streams.push(ask(&admin, "GET", "/events", &[]).await);
        assert_eq!(streams.last().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_close_on_shutdown() {
    let (_, store) = memory();
    let stopping = Arc::new(Notify::new());
    let ending = Arc::clone(&stopping);
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))]))
        .streams_until(move || Arc::clone(&ending).notified_owned())
        .build()
        .unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = ask(&admin, "GET", "/events", &[]).await;
        assert!(line(&mut stream).await.is_some());
        streams.push(stream);
    }
    stopping.notify_waiters();
    for stream in &mut streams {
        assert!(line(stream).await.is_none());
    }
}

#[tokio::test]
async fn peer_page_may_read_only_the_stream() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))])).build().unwrap();
    let site = ("sec-fetch-site", "same-site");
    let token = format!("Bearer {TOKEN}");
    let known = ("authorization", token.as_str());
    let read = ask(&admin, "GET", "/events", &[("origin", PEER), site]).await;
    assert_eq!(read.status(), 200);
    assert_eq!(read.headers()["access-control-allow-origin"], PEER);
    assert_eq!(read.headers()["vary"], "origin");
    assert!(!read.headers().contains_key("access-control-allow-credentials"));
    // A peer's page may also read why its request was rejected.
    let refused = [("origin", PEER), ("authorization", "Bearer no")];
    let refused = ask(&admin, "GET", "/events", &refused).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["access-control-allow-origin"], PEER);
    let asked = ("access-control-request-method", "GET");
    let preflight = ask(&admin, "OPTIONS", "/events", &[("origin", PEER), asked]).await;
    assert_eq!(preflight.status(), 204);
    assert_eq!(preflight.headers()["access-control-allow-headers"], "authorization");
    assert_eq!(preflight.headers()["access-control-allow-methods"], "GET");

    for (method, path, fields) in [
        ("GET", "/status", &[("origin", PEER), known][..]),
        ("GET", "/top", &[("origin", PEER), known]),
        ("GET", "/metrics", &[("origin", PEER)]),
        ("GET", "/events/", &[("origin", PEER)]),
        ("POST", "/events", &[("origin", PEER)]),
        ("HEAD", "/events", &[("origin", PEER)]),
        ("DELETE", "/status/all/global", &[("origin", PEER), known]),
        ("OPTIONS", "/status/all/global", &[("origin", PEER), asked]),
        ("OPTIONS", "/events", &[("origin", PEER), ("access-control-request-method", "DELETE")]),
        ("OPTIONS", "/events", &[("origin", PEER)]),
        ("GET", "/events", &[("origin", PEER), ("origin", "http://evil.example")]),
        ("GET", "/events", &[("origin", "http://127.0.0.1:9102"), site]),
        ("GET", "/events", &[("origin", "http://localhost:9101")]),
        ("GET", "/events", &[("origin", "https://127.0.0.1:9101")]),
        ("GET", "/events", &[("origin", "http://127.0.0.1:91010")]),
        ("GET", "/events", &[("origin", "null")]),
        // A peer's page always sends its origin.
        ("GET", "/events", &[site]),
    ] {
        let answer = ask(&admin, method, path, fields).await;
        assert_eq!(answer.status(), 403, "{method} {path} {fields:?}");
        assert!(!answer.headers().contains_key("access-control-allow-origin"), "{method} {path}");
    }
    // Under an unknown host, even the stream is rejected.
    let request = Request::builder().uri("/events").header("host", "rebound.example");
    let request = request.header("origin", PEER).body(Body::empty()).unwrap();
    assert_eq!(admin.clone().oneshot(request).await.unwrap().status(), 421);
}

/// The example in docs/admin-api.md has exactly the members of a line.
#[tokio::test]
async fn documented_event_matches() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))])).build().unwrap();
    let event = line(&mut ask(&admin, "GET", "/events", &[]).await).await.unwrap();
    let example = crate::example("GET /events");
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&example), names(&event));
}
