//! The service: items in memory, and the layers around it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tollgate::denial::problem_response;
use tollgate::{RateLimitLayer, Store};
use tower_http::cors::CorsLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// At most so many items. Further items are rejected instead of replacing older ones.
const MAX_ITEMS: usize = 10_000;
/// The most items in a response.
const MAX_PAGE: usize = 1_000;
/// The most characters in a name.
const MAX_NAME: usize = 200;
/// The most bytes in a request body, which is more than any item needs.
const MAX_BODY: usize = 16 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_SERVER_ID: HeaderName = HeaderName::from_static("x-server-id");

/// The complete app. A layer wraps the layers above it, so read from the inside out.
pub(crate) fn router<St: Store>(server_id: HeaderValue, limit: RateLimitLayer<St>) -> Router {
    Router::new()
        // axum's `MethodFilter` only supports standard methods, so the fallback handles the rest.
        .route("/items", get(list).post(create).fallback(search))
        .route("/items/{id}", get(read).put(replace).delete(remove))
        .with_state(Items::default())
        .route("/healthz", get(|| async { "ok\n" }))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "Try /items.") })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(as_problem))
        // Inside the limiter because time in its wait queue does not count as handler time. Only
        // reading the body can take long here, so the status is 408: the client was too slow.
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, TIMEOUT))
        .layer(limit)
        // Outside the limiter, because scripts must be able to read denials. It answers OPTIONS.
        .layer(cors())
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(TraceLayer::new_for_http().make_span_with(span))
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(SetResponseHeaderLayer::overriding(X_SERVER_ID, server_id))
}

fn cors() -> CorsLayer {
    // Browsers do not count `Authorization` as part of `*`.
    CorsLayer::permissive()
        .allow_headers([AUTHORIZATION, CONTENT_TYPE, X_API_KEY, X_REQUEST_ID])
        .max_age(Duration::from_secs(600))
}

/// With tower-http's target, so that RUST_LOG=tower_http=debug selects it too.
fn span<B>(request: &Request<B>) -> tracing::Span {
    let id = request.headers().get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or("");
    let (method, uri) = (request.method(), request.uri());
    tracing::debug_span!(target: "tower_http::trace", "request", %method, %uri, id)
}

/// axum's own errors are texts, and become problems like the other errors.
async fn as_problem(response: Response) -> Response {
    let is_text = |it: &HeaderValue| it.as_bytes().starts_with(b"text/plain");
    let status = response.status();
    if !status.is_client_error() || !response.headers().get(CONTENT_TYPE).is_some_and(is_text) {
        return response;
    }
    let text = to_bytes(response.into_body(), MAX_BODY).await.unwrap_or_default();
    problem(status, &String::from_utf8_lossy(&text))
}

#[derive(Clone, Serialize)]
struct Item {
    id: u64,
    name: String,
}

/// What a client sets. The service sets the id.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewItem {
    #[serde(deserialize_with = "name")]
    name: String,
}

fn name<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    let name = String::deserialize(value)?;
    if name.trim().is_empty() || name.chars().count() > MAX_NAME {
        return Err(D::Error::custom(format_args!("a name has 1 to {MAX_NAME} characters")));
    }
    Ok(name)
}

#[derive(Deserialize)]
struct Search {
    q: String,
}

/// All items, and the last id. Clones share the same items.
#[derive(Clone, Default)]
struct Items(Arc<Mutex<(BTreeMap<u64, Item>, u64)>>);

impl Items {
    /// Ignores poisoning: no handler panics in the middle of a change, so the items are consistent.
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<u64, Item>, &mut u64) -> T) -> T {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (items, last_id) = &mut *guard;
        f(items, last_id)
    }

    fn found(&self, is_meant: impl Fn(&Item) -> bool) -> Response {
        self.with(|items, _| {
            let found = items.values().filter(|item| is_meant(item)).take(MAX_PAGE);
            Json(found.collect::<Vec<_>>()).into_response()
        })
    }
}

async fn list(State(items): State<Items>) -> Response {
    items.found(|_| true)
}

async fn create(State(items): State<Items>, Json(new): Json<NewItem>) -> Response {
    items.with(|items, last_id| {
        if items.len() >= MAX_ITEMS {
            return problem(StatusCode::INSUFFICIENT_STORAGE, "Delete an item first.");
        }
        *last_id += 1;
        let item = Item { id: *last_id, name: new.name };
        items.insert(item.id, item.clone());
        let location = [(LOCATION, format!("/items/{}", item.id))];
        (StatusCode::CREATED, location, Json(item)).into_response()
    })
}

async fn read(State(items): State<Items>, Path(id): Path<u64>) -> Response {
    items.with(|items, _| items.get(&id).map_or_else(missing, |item| Json(item).into_response()))
}

/// Replaces an item that exists. The service chooses ids, so PUT does not create items.
async fn replace(
    State(items): State<Items>,
    Path(id): Path<u64>,
    Json(new): Json<NewItem>,
) -> Response {
    items.with(|items, _| {
        let Some(item) = items.get_mut(&id) else { return missing() };
        item.name = new.name;
        Json(item).into_response()
    })
}

async fn remove(State(items): State<Items>, Path(id): Path<u64>) -> Response {
    items
        .with(|items, _| items.remove(&id))
        .map_or_else(missing, |_| StatusCode::NO_CONTENT.into_response())
}

/// Handles SEARCH and QUERY, which are the same method under two names: items with the text `?q=`
/// in their name. Other methods get 405.
async fn search(State(items): State<Items>, request: Request) -> Response {
    if !matches!(request.method().as_str(), "SEARCH" | "QUERY") {
        // axum would only list the methods that it supports.
        let rejected = problem(StatusCode::METHOD_NOT_ALLOWED, "Allow lists the methods.");
        return ([(ALLOW, "GET, HEAD, POST, SEARCH, QUERY")], rejected).into_response();
    }
    match Query::<Search>::try_from_uri(request.uri()) {
        Ok(Query(Search { q })) => {
            let q = q.to_lowercase();
            items.found(|item| item.name.to_lowercase().contains(&q))
        }
        Err(error) => error.into_response(),
    }
}

fn missing() -> Response {
    problem(StatusCode::NOT_FOUND, "There is no such item.")
}

fn problem(status: StatusCode, detail: &str) -> Response {
    problem_response(status, None, detail).map(Into::into)
}
