//! The actual usage is charged, regardless of how the response finishes.

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::ServiceExt;

async fn app() -> Router {
    super::app(super::model::start().await.expect("a free port")).expect("valid limits")
}

async fn ask(app: &Router, body: &'static str) -> Response<Body> {
    let request = Request::post("/v1/chat/completions").header("authorization", "Bearer k-7f3a");
    let request = request.body(Body::from(body)).expect("a valid request");
    app.clone().oneshot(request).await.expect("an infallible service")
}

/// A request that reserves 23 micro-dollars: 3 for its 12 tokens, and 20 for an answer of 10 tokens.
const REQUEST: &str = r#"{"model": "mini", "stream": true, "max_tokens": 10, "prompt": "What is six times seven, please?"}"#;

/// The micro-dollars that the next request finds, without its own 23. Unlike the tokens, they are not
/// refilled while the test runs.
async fn left(app: &Router) -> u64 {
    let response = ask(app, REQUEST).await;
    let left = response.headers()["x-ratelimit-remaining-budget"].to_str().expect("a number");
    left.parse::<u64>().expect("a number") + 23
}

#[tokio::test]
async fn stream_settles_to_its_usage() {
    let app = app().await;
    let response = ask(&app, REQUEST).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-ratelimit-remaining-budget"], "49999977");
    let text = response.into_body().collect().await.expect("a whole stream").to_bytes();
    // The client did not request the usage.
    assert!(text.ends_with(b"\" 42.\"}}],\"usage\":null}\n\n"), "{text:?}");
    assert_eq!(left(&app).await, 50_000_000 - 14);
}

#[tokio::test]
async fn leaving_client_pays_for_received_text() {
    for (chunks, cost) in [(0, 3), (1, 5), (2, 9)] {
        let app = app().await;
        let mut body = ask(&app, REQUEST).await.into_body();
        for _ in 0..chunks {
            body.frame().await.expect("a chunk").expect("no error");
        }
        drop(body);
        assert_eq!(left(&app).await, 50_000_000 - cost, "{chunks}");
    }
}

#[tokio::test]
async fn failed_request_is_free() {
    for (body, status) in [
        (r#"{"model": "broken", "prompt": "What is six times seven?", "max_tokens": 10}"#, 500),
        (r#"{"model": "mini""#, 400),
    ] {
        let app = app().await;
        assert_eq!(ask(&app, body).await.status(), status);
        assert_eq!(left(&app).await, 50_000_000, "{body}");
    }
}

/// The default price applies to unknown models, so a client cannot invent a cheap model.
#[tokio::test]
async fn excess_is_denied_before_the_model_works() {
    let app = app().await;
    let expensive = r#"{"model": "other", "max_tokens": 1000000, "prompt": "Write a book."}"#;
    let response = ask(&app, expensive).await;
    assert_eq!(response.status(), 403);
    let text = response.into_body().collect().await.expect("a body").to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&text).expect("an error of the API");
    assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
    assert_eq!(left(&app).await, 50_000_000);
}
