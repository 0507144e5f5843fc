//! The service's responses to each method. The limit is too high to matter.

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

fn service() -> Router {
    demo::app(&["demo", "--limit", "1000000"]).expect("the flags are right")
}

async fn send(app: &Router, method: &str, path: &str, body: Value) -> Response<Value> {
    let request = Request::builder().method(method).uri(path);
    let request = match body {
        Value::Null => request.body(Body::empty()),
        Value::String(raw) => request.header("content-type", "application/json").body(raw.into()),
        json => request.header("content-type", "application/json").body(json.to_string().into()),
    };
    let request = request.expect("the request is sound");
    let Ok(response) = app.clone().oneshot(request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the body is in memory").to_bytes();
    // A body that is not JSON is represented by its length.
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| json!(body.len()));
    Response::from_parts(head, body)
}

fn header<'a>(response: &'a Response<Value>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap_or("?"))
}

#[tokio::test]
async fn items_can_be_created_changed_and_deleted() {
    let app = service();
    let created = send(&app, "POST", "/items", json!({ "name": "tea" })).await;
    assert_eq!((created.status().as_u16(), header(&created, "location")), (201, "/items/1"));
    assert_eq!(*created.body(), json!({ "id": 1, "name": "tea" }));
    for (method, body, name) in [
        ("GET", Value::Null, "tea"),
        ("PUT", json!({ "name": "coffee" }), "coffee"),
        ("GET", Value::Null, "coffee"),
    ] {
        let answer = send(&app, method, "/items/1", body).await;
        let expected = json!({ "id": 1, "name": name });
        assert_eq!((answer.status().as_u16(), answer.body()), (200, &expected), "{method}");
    }

    let deleted = send(&app, "DELETE", "/items/1", Value::Null).await;
    assert_eq!((deleted.status().as_u16(), deleted.body()), (204, &json!(0)));
    for method in ["GET", "DELETE"] {
        assert_eq!(send(&app, method, "/items/1", Value::Null).await.status(), 404, "{method}");
    }
    // Ids are not reused: a link to a deleted item must not lead to another item.
    let next = send(&app, "POST", "/items", json!({ "name": "milk" })).await;
    assert_eq!(header(&next, "location"), "/items/2");
}

#[tokio::test]
async fn items_are_searchable() {
    let app = service();
    for name in ["Green tea", "coffee", "black TEA"] {
        send(&app, "POST", "/items", json!({ "name": name })).await;
    }
    for (method, path, expected) in [
        ("GET", "/items", &[1, 2, 3][..]),
        ("SEARCH", "/items?q=tea", &[1, 3]),
        ("QUERY", "/items?q=COFFEE", &[2]),
        ("QUERY", "/items?q=milk", &[]),
    ] {
        let answer = send(&app, method, path, Value::Null).await;
        let items = answer.body().as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = items.iter().filter_map(|item| item["id"].as_u64()).collect();
        assert_eq!((answer.status().as_u16(), &*ids), (200, expected), "{path}");
    }
}

#[tokio::test]
async fn invalid_requests_are_rejected() {
    let app = service();
    for (method, path, body, expected) in [
        ("GET", "/", Value::Null, 404),
        ("GET", "/items/9", Value::Null, 404),
        ("PUT", "/items/9", json!({ "name": "x" }), 404),
        ("SEARCH", "/items?p=tea", Value::Null, 400),
        ("POST", "/items", Value::Null, 415),
        ("POST", "/items", json!("{"), 400),
        ("POST", "/items", json!({}), 422),
        ("POST", "/items", json!({ "name": "x", "id": 7 }), 422),
        ("POST", "/items", json!({ "name": "" }), 422),
        ("POST", "/items", json!({ "name": " " }), 422),
        ("POST", "/items", json!({ "name": "ü".repeat(201) }), 422),
        ("PUT", "/items/1", json!({ "name": "" }), 422),
        ("POST", "/items", json!({ "name": "x".repeat(16 * 1024) }), 413),
        ("DELETE", "/items", Value::Null, 405),
        ("PURGE", "/items", Value::Null, 405),
        ("POST", "/items/1", Value::Null, 405),
    ] {
        let answer = send(&app, method, path, body).await;
        assert_eq!(answer.status(), expected, "{method} {path}");
        assert!(expected != 405 || !header(&answer, "allow").is_empty(), "{method} {path}");
    }
    let longest = json!({ "name": "ü".repeat(200) });
    assert_eq!(send(&app, "POST", "/items", longest).await.status(), 201);
    for (path, status, detail) in
        [("/items/9", 404, "There is no such item."), ("/items/x", 400, "Invalid URL: ")]
    {
        let missing = send(&app, "GET", path, Value::Null).await;
        assert_eq!(header(&missing, "content-type"), "application/problem+json");
        assert_eq!(missing.body()["status"], status);
        assert!(missing.body()["detail"].as_str().unwrap().starts_with(detail), "{missing:?}");
    }
}

#[tokio::test]
async fn full_service_rejects_new_items() {
    let app = service();
    for _ in 0..10_000 {
        assert_eq!(send(&app, "POST", "/items", json!({ "name": "x" })).await.status(), 201);
    }
    assert_eq!(send(&app, "POST", "/items", json!({ "name": "x" })).await.status(), 507);
    assert_eq!(send(&app, "DELETE", "/items/1", Value::Null).await.status(), 204);
    assert_eq!(send(&app, "POST", "/items", json!({ "name": "x" })).await.status(), 201);
}

#[tokio::test]
async fn scripts_may_send_credentials() {
    // One unit, so a preflight with a cost would be denied.
    let app = demo::app(&["demo", "--limit", "1", "--costs", "one"]).expect("the flags are right");
    for _ in 0..2 {
        let preflight = send(&app, "OPTIONS", "/items", Value::Null).await;
        assert_eq!(preflight.status(), 200);
        let allowed = header(&preflight, "access-control-allow-headers");
        assert_eq!(allowed, "authorization,content-type,x-api-key,x-request-id");
        assert_eq!(header(&preflight, "access-control-max-age"), "600");
    }
    for expected in [200, 429] {
        let answer = send(&app, "GET", "/items", Value::Null).await;
        assert_eq!(answer.status(), expected);
        assert_eq!(header(&answer, "access-control-expose-headers"), "*");
    }
}

#[test]
fn errors_name_the_flag_and_no_secret() {
    for (line, expected) in [
        (&["--key", "user", "--jwt-secret", "short"][..], "--jwt-secret: "),
        (&["--key", "ip", "--trusted-proxies", "10.0.0.0/33"], "--trusted-proxies: "),
        (&["--limit", "5"], "--limit 5: a DELETE request costs 10; use --limit 10, or --costs one"),
        (&["--algorithm", "token_bucket", "--burst", "5"], "use --burst 10, or --costs one"),
        (&["--window", "1ns"], "--window: policy `global`: a window of 1ns is outside"),
        (
            &["--algorithm", "token_bucket", "--limit", "999983", "--window", "400days"],
            "--limit: policy `global`: a bucket of 999983 units",
        ),
    ] {
        let error = demo::app(&[&["demo"], line].concat()).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains(expected), "{line:?}: {error}");
        assert!(!error.contains("short"), "{line:?}: {error}");
    }
}
