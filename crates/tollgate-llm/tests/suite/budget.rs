//! `LlmBudget` around a router. The example `language-model` tests its charges.

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::key::{ApiKey, ApiKeys};
use tollgate::{MemoryStore, Policy, Quota};
use tollgate_llm::{LlmBudget, Models};
use tower::ServiceExt;

fn app() -> Router {
    let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k"]));
    let tokens =
        Policy::fixed_window_counter("tokens", Quota::per_hour(1_000)).expect("a valid policy");
    let budget = LlmBudget::builder(MemoryStore::new(), key, Models::new(crate::model()))
        .tokens(tokens)
        .max_body(200)
        .build()
        .expect("valid limits");
    Router::new()
        .route("/v1/messages", post(|body: String| async { body }))
        .route("/v1/models", get(|| async { "models" }))
        .layer(budget)
}

async fn send(app: &Router, request: http::request::Builder, body: &str) -> Response<Body> {
    let request = request.body(Body::from(body.to_owned())).expect("a valid request");
    app.clone().oneshot(request).await.expect("an infallible service")
}

#[tokio::test]
async fn unreadable_requests_get_the_api_error_format() {
    let app = app();
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(200));
    for (key, coding, body, status, kind) in [
        ("", "", "{}", 401, "authentication_error"),
        ("Bearer wrong", "", "{}", 401, "authentication_error"),
        ("Bearer k", "", "{", 400, "invalid_request_error"),
        ("Bearer k", "gzip", "{}", 415, "invalid_request_error"),
        ("Bearer k", "", &long, 413, "request_too_large"),
        ("Bearer k", "", "{\"max_tokens\": 2000}", 403, "permission_error"),
    ] {
        let mut request = Request::post("/v1/messages").header("authorization", key);
        if !coding.is_empty() {
            request = request.header("content-encoding", coding);
        }
        let response = send(&app, request, body).await;
        assert_eq!(response.status(), status, "{body}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &kind.into()));
    }
}

#[tokio::test]
async fn inner_service_gets_the_whole_request() {
    let app = app();
    let request = || Request::post("/v1/messages").header("authorization", "Bearer k");
    let body = "{\"max_tokens\": 100, \"usage\": {\"input_tokens\": 3, \"output_tokens\": 4}}";
    let response = send(&app, request(), body).await;
    assert_eq!(response.headers()["x-ratelimit-remaining-tokens"], "889");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body);
    // The response is the request, so it reported 7 tokens.
    let response = send(&app, request(), "{\"max_tokens\": 0}").await;
    assert_eq!(response.headers()["x-ratelimit-remaining-tokens"], "993");
    // Only POST requests use tokens.
    let request = Request::get("/v1/models").header("authorization", "Bearer k");
    let response = send(&app, request, "").await;
    assert_eq!(response.headers()["x-ratelimit-remaining-tokens"], "993");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "models");
}
