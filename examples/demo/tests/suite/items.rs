//! The service's responses to each method. The limit is too high to matter.

use std::ffi::OsString;

use axum::Router;
use axum::body::Body;
use demo::args::Args;
use demo::{app, limits};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::MemoryStore;
use tower::ServiceExt;

fn service() -> Router {
    let line = ["demo", "--limit", "1000000"].map(OsString::from);
    let args = Args::from_command_line(line).expect("the flags are right");
    let layer = limits::layer(&args, MemoryStore::new()).expect("the limit can be counted");
    app::router(&args.server_id, layer)
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
    let tea = json!({ "name": "tea", "note": "green" });
    let created = send(&app, "POST", "/items", tea).await;
    assert_eq!((created.status().as_u16(), header(&created, "location")), (201, "/items/1"));
    assert_eq!(*created.body(), json!({ "id": 1, "name": "tea", "note": "green" }));

    for (method, body, expected) in [
        ("GET", Value::Null, json!({ "id": 1, "name": "tea", "note": "green" })),
        ("PATCH", json!({ "name": "Tea" }), json!({ "id": 1, "name": "Tea", "note": "green" })),
        ("PATCH", json!({ "note": null }), json!({ "id": 1, "name": "Tea" })),
        ("PUT", json!({ "name": "coffee" }), json!({ "id": 1, "name": "coffee" })),
        ("GET", Value::Null, json!({ "id": 1, "name": "coffee" })),
    ] {
        let answer = send(&app, method, "/items/1", body).await;
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
async fn items_are_paged_and_searchable() {
    let app = service();
    for name in ["Green tea", "coffee", "black TEA"] {
        send(&app, "POST", "/items", json!({ "name": name })).await;
    }
    let ids = |response: &Response<Value>| -> Vec<u64> {
        let items = response.body()["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|item| item["id"].as_u64()).collect()
    };
    for (method, path, body, expected) in [
        ("GET", "/items", Value::Null, &[1, 2, 3][..]),
        ("GET", "/items?limit=2", Value::Null, &[1, 2]),
        ("GET", "/items?after=2", Value::Null, &[3]),
        ("GET", "/items?after=18446744073709551615", Value::Null, &[]),
        ("SEARCH", "/items?q=tea", Value::Null, &[1, 3]),
        ("QUERY", "/items?q=COFFEE", Value::Null, &[2]),
        ("SEARCH", "/items", json!({ "q": "black" }), &[3]),
        ("QUERY", "/items", json!({ "q": "milk" }), &[]),
    ] {
        let answer = send(&app, method, path, body).await;
        assert_eq!((answer.status().as_u16(), ids(&answer).as_slice()), (200, expected), "{path}");
    }
}

#[tokio::test]
async fn invalid_requests_get_a_problem() {
    let app = service();
    send(&app, "POST", "/items", json!({ "name": "tea" })).await;
    let raw = |text: &str| json!(text);
    for (method, path, body, expected) in [
        ("GET", "/", Value::Null, 404),
        ("GET", "/items/9", Value::Null, 404),
        ("GET", "/items/tea", Value::Null, 404),
        ("PUT", "/items/9", json!({ "name": "x" }), 404),
        ("GET", "/items?limit=many", Value::Null, 400),
        ("SEARCH", "/items?p=tea", Value::Null, 400),
        ("SEARCH", "/items", Value::Null, 415),
        ("POST", "/items", Value::Null, 415),
        ("POST", "/items", raw("{"), 400),
        ("POST", "/items", json!({}), 422),
        ("POST", "/items", json!({ "name": " " }), 422),
        ("POST", "/items", json!({ "name": "x".repeat(201) }), 422),
        ("POST", "/items", json!({ "name": "x", "id": 7 }), 422),
        ("POST", "/items", raw(&" ".repeat(17 * 1024)), 413),
        ("PATCH", "/items/1", json!({ "name": "" }), 422),
        ("DELETE", "/items", Value::Null, 405),
        ("PURGE", "/items", Value::Null, 405),
        ("POST", "/items/1", Value::Null, 405),
    ] {
        let answer = send(&app, method, path, body).await;
        assert_eq!(answer.status(), expected, "{method} {path}");
        assert_eq!(header(&answer, "content-type"), "application/problem+json", "{method} {path}");
        assert_eq!(answer.body()["status"], expected, "{method} {path}");
        assert_eq!(
            header(&answer, "allow").is_empty(),
            !matches!(expected, 405) && method != "SEARCH"
        );
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
