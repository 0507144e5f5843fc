//! Where operators look, never on a public listener.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::status::Inspect;
use tower_service::Service;

use super::gateway::{Gateway, History};
use super::keys::KeySet;
use super::listener;

/// Serves the admin address for as long as it is polled.
pub(super) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    router: Router,
    listener: TcpListener,
) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                listener::rest(&error).await;
                continue;
            }
        };
        let (gateway, router) = (Arc::clone(&gateway), router.clone());
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let answer = answer(&gateway, request.method(), request.uri().path());
                let mut router = router.clone();
                async move {
                    match answer {
                        Some(answer) => Ok::<_, Infallible>(answer),
                        // It is always ready.
                        None => router.call(request).await,
                    }
                }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection to the admin address ended early");
            }
        });
    }
}

/// The answer to whoever asks how the process is, under whatever name: probes know no other
/// than an address. All else the router answers, to those whom it lets in.
fn answer<St: Inspect>(
    gateway: &Gateway<St>,
    method: &Method,
    path: &str,
) -> Option<Response<Body>> {
    let known: fn(&Gateway<St>) -> Response<Body> = match path {
        "/healthz" => |_| respond(StatusCode::OK, &json!({ "status": "ok" })),
        "/readyz" => ready,
        _ => return None,
    };
    if *method != Method::GET && *method != Method::HEAD {
        return Some(read_only());
    }
    Some(known(gateway))
}

/// Whether requests should come here. Without the keys of tokens they should: there may be
/// none elsewhere either, and then nobody would be served at all.
fn ready<St: Inspect>(gateway: &Gateway<St>) -> Response<Body> {
    if gateway.draining.is_cancelled() {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }));
    }
    let app = gateway.app();
    if !app.key_sets().iter().all(|set| set.was_tried()) {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "fetching keys" }));
    }
    let missing = app.key_sets().iter().filter(|set| set.state().fetched.is_none());
    let missing: Vec<_> = missing.map(|set| set.url()).collect();
    if missing.is_empty() {
        return respond(StatusCode::OK, &json!({ "status": "ready" }));
    }
    respond(StatusCode::OK, &json!({ "status": "ready", "withoutKeysOf": missing }))
}

/// The answer to whoever would like to change what can only be read.
pub(super) fn read_only() -> Response<Body> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "This can only be read.");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// What is running and how it came to be. Times are seconds: since 1970, or passed.
pub(super) fn config(history: &History, key_sets: &[Arc<KeySet>]) -> Response<Body> {
    let age = |since: SystemTime| since.elapsed().unwrap_or_default().as_secs();
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let failure = |error: &Option<(SystemTime, String)>| {
        let error = error.as_ref();
        error.map(|(at, said)| json!({ "at": seconds(*at), "age": age(*at), "message": said }))
    };
    let key_set = |set: &Arc<KeySet>| {
        let state = set.state();
        let (at, kids) = state.fetched.unzip();
        json!({
            "url": set.url(),
            "kids": kids,
            "fetchedAt": at.map(seconds),
            "age": at.map(age),
            "lastError": failure(&state.error),
        })
    };
    let config = json!({
        "version": history.version,
        "loadedAt": seconds(history.loaded_at),
        "age": age(history.loaded_at),
        "current": history.error.is_none(),
        "lastError": failure(&history.error),
        "failedReloads": history.failures,
        "waitsForRestart": history.waiting,
        "keySets": key_sets.iter().map(key_set).collect::<Vec<_>>(),
        "plan": history.words.lines().collect::<Vec<_>>(),
    });
    respond(StatusCode::OK, &config)
}

fn respond(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(format!("{body:#}\n"))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason();
    let body = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
    });
    let mut response = respond(status, &body);
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}

/// How long a head may take here, and a connection stay unused.
const PATIENCE: Duration = Duration::from_secs(60);
