//! Helpers: a service, requests to it, and functions that read its responses.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::body::BodyMode;
use tollgate::headers::HeaderOptions;
use tollgate::key::Key;
use tollgate::layer::{RateLimit, RateLimitLayerBuilder};
use tollgate::store::{ManualClock, Micros, TokioClock};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer, Store, StoreExt};
use tower::util::ServiceFn;
use tower::{Layer, ServiceExt};

/// A service that responds with "hello" immediately.
pub(crate) type Hello =
    ServiceFn<fn(Request<()>) -> Ready<Result<Response<Full<Bytes>>, Infallible>>>;

pub(crate) type Answer = Response<Full<Bytes>>;

pub(crate) fn hello() -> Hello {
    tower::service_fn(|_| ready(Ok(Response::new(Full::from("hello")))))
}

/// A store with a manual clock, which starts at [`START`].
pub(crate) fn memory() -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::default();
    (clock.clone(), MemoryStore::builder().clock(clock).build())
}

/// 2024-01-01 00:00:00 UTC, the manual clock's initial time.
pub(crate) const START: u64 = 1_704_067_200;

/// A store on tokio's time.
pub(crate) fn on_tokio_time() -> MemoryStore<TokioClock> {
    MemoryStore::builder().clock(TokioClock::default()).build()
}

pub(crate) fn seconds(seconds: u64) -> Micros {
    Micros::new(seconds * 1_000_000)
}

/// `limit` units in any 60 seconds.
pub(crate) fn log(name: &str, limit: u64) -> Policy {
    Policy::sliding_window_log(name, Quota::per_minute(limit)).expect("a valid policy")
}

/// A layer with these limits, all headers and default options.
pub(crate) fn layer<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimitLayer<St> {
    builder(store, limits).build().expect("a valid layer")
}

pub(crate) fn builder<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimitLayerBuilder<St> {
    let builder = RateLimitLayer::builder(store.clone()).headers(HeaderOptions::all());
    limits.into_iter().fold(builder, RateLimitLayerBuilder::limit)
}

/// The service behind these limits.
pub(crate) fn limited<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimit<Hello, St> {
    layer(store, limits).layer(hello())
}

/// A request with a peer address, like a server would provide it.
pub(crate) fn request(method: Method, path: &str) -> Request<()> {
    from_peer(1, Request::builder().method(method).uri(path).body(()).expect("a valid request"))
}

pub(crate) fn get() -> Request<()> {
    request(Method::GET, "/")
}

/// Sets the request's peer address to 192.0.2.`last`.
pub(crate) fn from_peer<B>(last: u8, mut request: Request<B>) -> Request<B> {
    let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 50_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

/// A clone's response, because `oneshot` consumes a service.
pub(crate) async fn ask<St: Store, M: BodyMode<Full<Bytes>>>(
    service: &RateLimit<Hello, St, M>,
    request: Request<()>,
) -> Response<M::Body> {
    service.clone().oneshot(request).await.expect("an infallible service")
}

pub(crate) async fn status<St: Store, M: BodyMode<Full<Bytes>>>(
    service: &RateLimit<Hello, St, M>,
) -> u16 {
    ask(service, get()).await.status().as_u16()
}

/// The global key's remaining units.
pub(crate) async fn left<St: Store>(store: &St, policy: &Policy) -> u64 {
    store.peek(policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining
}

/// Runs everything that can run without time passing.
pub(crate) async fn settle_down() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// The router's response.
pub(crate) async fn ask_router(
    router: &Router,
    request: Request<()>,
) -> Response<axum::body::Body> {
    let request = request.map(|()| axum::body::Body::empty());
    router.clone().oneshot(request).await.expect("an infallible router")
}

/// All lines of a header, joined with commas as RFC 9110 permits.
pub(crate) fn field(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<_> = lines(headers, name);
    (!lines.is_empty()).then(|| lines.join(", "))
}

pub(crate) fn lines(headers: &HeaderMap, name: &str) -> Vec<String> {
    let text = |value: &http::HeaderValue| value.to_str().expect("visible ASCII").to_owned();
    headers.get_all(name).iter().map(text).collect()
}

/// The headers that the limiter adds, sorted by name.
pub(crate) fn rate_fields(headers: &HeaderMap) -> Vec<String> {
    let ours = |name: &str| name.contains("ratelimit") || name == "retry-after";
    let mut names: Vec<_> = headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let line = |name: &str| format!("{name}: {}", field(headers, name).unwrap_or_default());
    names.into_iter().filter(|name| ours(name)).map(line).collect()
}

/// The body as text.
pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

/// The body as JSON.
pub(crate) async fn json<B>(response: Response<B>) -> serde_json::Value
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    serde_json::from_str(&text(response).await).expect("JSON")
}
