//! The service and the layers around it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use axum::routing::get;
use tollgate::headers::EXPOSED;
use tollgate::{RateLimitLayer, Store};
use tower::ServiceExt;
use tower_http::cors::{Any, CorsLayer};
use tower_http::request_id::{
    MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::items;
use crate::problem::Problem;

/// The complete app. A layer wraps the layers above it, so read from the inside out.
pub fn router<St: Store>(server_id: &ServerId, limit: RateLimitLayer<St>) -> Router {
    let limited = Router::new()
        .merge(items::router())
        .route("/healthz", get(|| async { "ok\n" }))
        .fallback(|| async { Problem::not_found("Try /items.") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        // Inside the limiter because time in its wait queue does not count as handler time. Only
        // reading the body can take long here, so the status is 408: the client was too slow.
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, TIMEOUT))
        .layer(limit);
    // The CORS layer is outside the limiter so that scripts can read denials too. It would answer
    // every OPTIONS request itself, so requests that are not preflights bypass it. These cost 1,
    // like other methods without their own cost.
    let with_cors = limited.clone().layer(cors());
    let either = move |request: Request<Body>| {
        let app = if is_plain_options(&request) { &limited } else { &with_cors };
        app.clone().oneshot(request)
    };
    Router::new()
        .fallback(either)
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(TraceLayer::new_for_http().make_span_with(span))
        .layer(SetRequestIdLayer::x_request_id(NumberedRequests::new(server_id)))
        .layer(SetResponseHeaderLayer::overriding(X_SERVER_ID, server_id.0.clone()))
}

fn is_plain_options<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS
        && !request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn cors() -> CorsLayer {
    // `Method` has no constants for the last two, so all are parsed.
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "SEARCH", "QUERY"];
    let methods = methods.into_iter().filter_map(|name| Method::from_bytes(name.as_bytes()).ok());
    let exposed = EXPOSED.into_iter().chain([LOCATION, X_REQUEST_ID, X_SERVER_ID]);
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods(methods.collect::<Vec<_>>())
        .allow_headers([AUTHORIZATION, CONTENT_TYPE, X_API_KEY, X_REQUEST_ID])
        .expose_headers(exposed.collect::<Vec<_>>())
        .max_age(Duration::from_secs(600))
}

fn span<B>(request: &Request<B>) -> tracing::Span {
    let id = request.headers().get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or("");
    tracing::debug_span!("request", method = %request.method(), uri = %request.uri(), id)
}

/// Numbers requests: `api1-42`. An id that the client sent is not replaced.
#[derive(Clone)]
struct NumberedRequests {
    server: Arc<str>,
    last: Arc<AtomicU64>,
}

impl NumberedRequests {
    fn new(server_id: &ServerId) -> Self {
        Self { server: server_id.as_str().into(), last: Arc::default() }
    }
}

impl MakeRequestId for NumberedRequests {
    fn make_request_id<B>(&mut self, _: &Request<B>) -> Option<RequestId> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let id = HeaderValue::try_from(format!("{}-{number}", self.server));
        id.ok().map(RequestId::new)
    }
}

/// A replica's name: printable ASCII, because it is sent in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerId(HeaderValue);

impl ServerId {
    /// The name.
    pub fn as_str(&self) -> &str {
        // Only strings that passed `from_str` are stored, so this cannot fail.
        self.0.to_str().unwrap_or_default()
    }
}

impl FromStr for ServerId {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_sound =
            (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::from_str(name).ok().filter(|_| is_sound);
        value
            .map(Self)
            .ok_or("expected 1 to 64 printable ASCII characters without spaces, such as api1")
    }
}

/// The host name, or `demo` if the host name is not a valid server id.
impl Default for ServerId {
    fn default() -> Self {
        let host = gethostname::gethostname().into_string().unwrap_or_default();
        host.parse().unwrap_or(Self(HeaderValue::from_static("demo")))
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The maximum body size, which is more than any item needs.
const MAX_BODY: usize = 16 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_SERVER_ID: HeaderName = HeaderName::from_static("x-server-id");
