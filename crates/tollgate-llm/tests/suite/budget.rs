//! `LlmBudget` around a router. The example `language-model` tests its charges.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::key::{ApiKey, ApiKeys};
use tollgate::{MemoryStore, Policy, Quota};
use tollgate_llm::{LlmBudget, Models, Watch, WatchedBody};
use tower::ServiceExt;

use crate::servers::{all_cases, models};

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

/// A body in chunks, which may announce its end with the last chunk, and may have trailers.
struct Chunks {
    data: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    announces_end: bool,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.data.pop_front().map(Frame::data);
        Poll::Ready(data.or_else(|| self.trailers.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.announces_end && self.data.is_empty() && self.trailers.is_none()
    }
}

fn bytes(case: &Value) -> VecDeque<Bytes> {
    let is_compressed = case["encoding"].is_string();
    let chunks = case["chunks"].as_array().expect("a list").iter();
    let chunks = chunks.map(|chunk| chunk.as_str().expect("a text"));
    let bytes = chunks.map(|chunk| {
        // In compressed responses, each character stands for a byte.
        let byte = |byte| u8::try_from(byte).expect("a byte");
        if is_compressed { chunk.chars().map(byte).collect() } else { chunk.to_owned().into() }
    });
    bytes.collect()
}

fn respond(case: &Value, announces_end: bool, trailers: Option<HeaderMap>) -> Response<Body> {
    let data = bytes(case);
    let announces_end = announces_end || data.is_empty();
    let mut response = Response::new(Body::new(Chunks { data, trailers, announces_end }));
    let status = case["status"].as_u64().map_or(200, |status| status.try_into().expect("a status"));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for (name, member) in [("content-type", "type"), ("content-encoding", "encoding")] {
        if let Some(value) = case[member].as_str() {
            response.headers_mut().insert(name, value.parse().expect("a header"));
        }
    }
    response
}

#[tokio::test]
async fn real_responses_cost_their_usage() {
    let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().expect("a header"))]);
    for (announces_end, trailers) in [(false, None), (true, None), (true, Some(trailers))] {
        for case in all_cases() {
            let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k"]));
            let budget = Policy::fixed_window_counter("budget", Quota::per_hour(50_000_000));
            let budget = LlmBudget::builder(MemoryStore::new(), key, models())
                .money(budget.expect("a valid policy"))
                .build()
                .expect("valid limits");
            let (answer, ends) = (case.clone(), trailers.clone());
            let forward = async move || respond(&answer, announces_end, ends);
            let free = async || StatusCode::IM_A_TEAPOT;
            let app = Router::new().route("/free", post(free)).fallback(forward).layer(budget);
            let path = case["path"].as_str().expect("a path");
            let request = || Request::post(path).header("authorization", "Bearer k");
            let response = send(&app, request(), &case["request"].to_string()).await;
            let received = response.into_body().collect().await.expect("an infallible body");
            let has_trailers = bytes(&case).is_empty() || received.trailers() == trailers.as_ref();
            assert!(has_trailers, "{case}");
            let sent = bytes(&case).into_iter().flatten().collect::<Vec<u8>>();
            if let Some(hidden) = case["hidden"].as_str() {
                let sent = String::from_utf8(sent).expect("a text");
                assert_eq!(received.to_bytes(), sent.replacen(hidden, "", 1), "{case}");
            } else {
                assert_eq!(received.to_bytes(), sent, "{case}");
            }
            let free = Request::post("/free").header("authorization", "Bearer k");
            let response = send(&app, free, "{\"max_tokens\": 0, \"model\": \"cheap\"}").await;
            let left = response.headers()["x-ratelimit-remaining-budget"].to_str().expect("a text");
            let charged = 50_000_000 - left.parse::<u64>().expect("a number");
            assert_eq!(Value::from(charged), case["charged"], "{case}");
        }
    }
}

/// An HTTP/2 body may become complete after its last bytes were read.
#[tokio::test]
async fn retained_bytes_delay_the_end() {
    struct Ending(VecDeque<Bytes>, Arc<AtomicBool>);

    impl http_body::Body for Ending {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }

        fn is_end_stream(&self) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }

    let ended = Arc::new(AtomicBool::new(false));
    let inner = Arc::clone(&ended);
    let forward = async move || {
        let data = VecDeque::from([Bytes::from_static(b": text\n\ndata: [DO")]);
        let stream = [("content-type", "text/event-stream")];
        (stream, Body::new(Ending(data, inner)))
    };
    let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k"]));
    let budget = Policy::fixed_window_counter("budget", Quota::per_hour(50_000_000));
    let budget = LlmBudget::builder(MemoryStore::new(), key, models())
        .money(budget.expect("a valid policy"))
        .build()
        .expect("valid limits");
    let app = Router::new().route("/v1/completions", post(forward)).layer(budget);
    let request = Request::post("/v1/completions").header("authorization", "Bearer k");
    let mut body = send(&app, request, "{\"stream\": true}").await.into_body();
    let frame = body.frame().await.expect("a line").expect("an infallible body");
    assert_eq!(frame.into_data().expect("data"), ": text\n\n");
    ended.store(true, Ordering::Relaxed);
    assert!(!body.is_end_stream());
    assert_eq!(body.collect().await.expect("an infallible body").to_bytes(), "data: [DO");
}

/// hyper drops unsent bytes when a body fails, so the receiver gets time to send them.
#[test]
fn retained_bytes_precede_an_error() {
    struct Broken;

    impl http_body::Body for Broken {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            Poll::Ready(Some(Err("broken")))
        }
    }

    struct Retained;

    impl Watch for Retained {
        fn data(&mut self, data: Bytes) -> Bytes {
            data
        }

        fn rest(&mut self, is_complete: bool) -> Bytes {
            assert!(!is_complete);
            Bytes::from_static(b"rest")
        }
    }

    let mut body = WatchedBody::new(Broken).watched_by(Box::new(Retained));
    let mut poll = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
    let rest = poll().map(|frame| frame.and_then(Result::ok)?.into_data().ok());
    assert_eq!(rest, Poll::Ready(Some(Bytes::from_static(b"rest"))));
    assert!(poll().is_pending());
    assert!(matches!(poll(), Poll::Ready(Some(Err("broken")))));
}
