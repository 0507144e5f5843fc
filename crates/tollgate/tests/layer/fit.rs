//! The layer works with routers, builders, servers and all kinds of bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::State;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get as on_get;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use tollgate::store::ManualClock;
use tollgate::{Limit, MemoryStore, RateLimitLayer, Store};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::support::*;

fn limit(units: u64) -> RateLimitLayer<MemoryStore<ManualClock>> {
    layer(&memory().1, [Limit::global(log("global", units))])
}

/// Checks at compile time that the layer and its service meet the bounds of common servers.
fn fits_common_servers<St: Store>(limit: &RateLimitLayer<St>) {
    fn service<S>(_: S)
    where
        S: Service<Request<Incoming>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
    }
    fn layer<L: Clone + Send + Sync + 'static>(_: &L) {}
    layer(limit);
    service(limit.layer(tower::service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    })));
}

#[test]
fn layer_and_service_are_clone_and_send() {
    fits_common_servers(&limit(1));
}

#[tokio::test]
async fn works_on_a_router() {
    let app = Router::new().route("/", on_get(|| async { "hello" })).layer(limit(1));
    assert_eq!(ask_router(&app, get()).await.status(), 200);
    assert_eq!(ask_router(&app, get()).await.status(), 429);
}

#[tokio::test]
async fn route_layer_ignores_unmatched_paths() {
    let app = Router::new().route("/", on_get(|| async { "hello" })).route_layer(limit(1));
    for _ in 0..3 {
        assert_eq!(ask_router(&app, request(Method::GET, "/missing")).await.status(), 404);
    }
    assert_eq!(ask_router(&app, get()).await.status(), 200);
    assert_eq!(ask_router(&app, get()).await.status(), 429);
}

#[tokio::test]
async fn works_on_a_single_method() {
    let hello = on_get(|| async { "hello" }).layer(limit(1)).post(|| async { "posted" });
    let app = Router::new().route("/", hello);
    assert_eq!(ask_router(&app, get()).await.status(), 200);
    assert_eq!(ask_router(&app, get()).await.status(), 429);
    assert_eq!(ask_router(&app, request(Method::POST, "/")).await.status(), 200);
}

#[tokio::test]
async fn nested_router_sees_stripped_path() {
    let limits = [Limit::global(log("global", 1))];
    let exempt = |paths: [&str; 1]| {
        let paths = tollgate::limit::Paths::new(paths).unwrap();
        builder(&memory().1, limits.clone()).exempt_paths(paths).build().unwrap()
    };
    for (path, inside, expected) in [
        ("/health", true, 200),
        ("/api/health", true, 429),
        ("/health", false, 429),
        ("/api/health", false, 200),
    ] {
        let api = Router::new().route("/health", on_get(|| async { "well" }));
        let app = match inside {
            true => Router::new().nest("/api", api.layer(exempt([path]))),
            false => Router::new().nest("/api", api).layer(exempt([path])),
        };
        let health = || request(Method::GET, "/api/health");
        assert_eq!(ask_router(&app, health()).await.status(), 200);
        assert_eq!(ask_router(&app, health()).await.status(), expected, "{path} {inside}");
    }
}

#[tokio::test]
async fn works_in_a_service_builder() {
    let stack = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(|_| async { StatusCode::REQUEST_TIMEOUT }))
        .load_shed()
        .layer(limit(1))
        .concurrency_limit(10)
        .into_inner();
    let app = Router::new().route("/", on_get(|| async { "hello" })).layer(stack);
    assert_eq!(ask_router(&app, get()).await.status(), 200);
    assert_eq!(ask_router(&app, get()).await.status(), 429);
}

#[tokio::test]
async fn layer_can_be_optional() {
    for (limit, expected) in [(Some(limit(1)), 429), (None, 200)] {
        let app = Router::new().route("/", on_get(|| async { "hello" }));
        let app = app.layer(tower::util::option_layer(limit));
        assert_eq!(ask_router(&app, get()).await.status(), 200);
        assert_eq!(ask_router(&app, get()).await.status(), expected);
    }
}

#[tokio::test]
async fn outer_layers_see_denials_as_responses() {
    // A CORS layer does this: without its headers, a browser hides the 429 from the page.
    let allow_origin = |mut response: Response<axum::body::Body>| async {
        let headers = response.headers_mut();
        headers.insert("access-control-allow-origin", http::HeaderValue::from_static("*"));
        response
    };
    let app = Router::new()
        .route("/", on_get(|| async { "hello" }))
        .layer(limit(1))
        .layer(axum::middleware::map_response(allow_origin));
    for expected in [200, 429] {
        let response = ask_router(&app, get()).await;
        assert_eq!(response.status(), expected);
        assert_eq!(response.headers()["access-control-allow-origin"], "*");
    }
}

/// Resilience4j uses the same order: with the limiter outside, the breaker does not count a denial
/// as a failure, and requests that the open breaker rejects need not be charged.
#[tokio::test]
async fn inner_breaker_sees_only_allowed_requests() {
    let (_, store) = memory();
    let counted = Limit::global(log("global", 3)).count_only(|response| response.status != 503);
    let breaker = Arc::new(CircuitBreaker::default());
    let app = Router::new()
        .route("/", on_get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .layer(from_fn_with_state(Arc::clone(&breaker), CircuitBreaker::call))
        .layer(layer(&store, [counted]));
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(ask_router(&app, get()).await.status().as_u16());
    }
    assert_eq!(statuses, [500, 500, 503, 503, 503, 503]);
    breaker.failures.store(0, Ordering::SeqCst);
    for (expected, heard_of) in [(500, 7), (429, 7), (429, 7)] {
        assert_eq!(ask_router(&app, get()).await.status(), expected);
        assert_eq!(breaker.heard_of.load(Ordering::SeqCst), heard_of);
    }
    assert_eq!(breaker.failures.load(Ordering::SeqCst), 1);
}

/// Responds with 503 after two failed requests.
#[derive(Default)]
struct CircuitBreaker {
    heard_of: AtomicUsize,
    failures: AtomicUsize,
}

impl CircuitBreaker {
    async fn call(
        State(breaker): State<Arc<Self>>,
        request: axum::extract::Request,
        next: Next,
    ) -> axum::response::Response {
        breaker.heard_of.fetch_add(1, Ordering::SeqCst);
        if breaker.failures.load(Ordering::SeqCst) == 2 {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let response = next.run(request).await;
        if !response.status().is_success() {
            breaker.failures.fetch_add(1, Ordering::SeqCst);
        }
        response
    }
}

/// A body of two data frames, trailers and an error.
struct Pieces(usize);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0 += 1;
        Poll::Ready(match self.0 {
            1 | 3 => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            2 | 4 => Some(Ok(Frame::data(Bytes::from_static(b"piece ")))),
            5 => Some(Ok(Frame::trailers(http::HeaderMap::from_iter([(
                http::HeaderName::from_static("x-sum"),
                http::HeaderValue::from_static("2"),
            )])))),
            6 => Some(Err("the rest is lost")),
            _ => None,
        })
    }
}

#[tokio::test]
async fn streaming_body_passes_frame_by_frame() {
    let pieces =
        tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Pieces(0))) });
    let service = limit(1).any_body().layer(pieces);
    let mut body = service.clone().oneshot(get()).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), None);
    for _ in 0..2 {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "piece ");
    }
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "2");
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "the rest is lost");
    let denied = service.oneshot(get()).await.unwrap().into_body();
    let size = denied.size_hint().exact().unwrap();
    assert_eq!(denied.collect().await.unwrap().to_bytes().len() as u64, size);
}

#[tokio::test]
async fn any_request_body_works() {
    async fn passes<B: 'static>(body: B) {
        let inner = tower::service_fn(|_: Request<B>| async {
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        let service = limit(1).any_body().layer(inner);
        assert_eq!(service.oneshot(Request::new(body)).await.unwrap().status(), 200);
    }
    passes(()).await;
    passes(Full::<Bytes>::default()).await;
    passes(axum::body::Body::empty()).await;
    passes(tonic::body::Body::empty()).await;
    // The body need not even be `Send`.
    passes(std::rc::Rc::new("local")).await;
}
