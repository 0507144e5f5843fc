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
        "/readyz" => |gateway| {
            if gateway.draining.is_cancelled() {
                respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }))
            } else {
                respond(StatusCode::OK, &json!({ "status": "ready" }))
            }
        },
        _ => return None,
    };
    if *method != Method::GET && *method != Method::HEAD {
        return Some(read_only());
    }
    Some(known(gateway))
}

/// The answer to whoever would like to change what can only be read.
pub(super) fn read_only() -> Response<Body> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "This can only be read.");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// What is running and how it came to be. Times are seconds: since 1970, or passed.
pub(super) fn config(history: &History) -> Response<Body> {
    let age = |since: SystemTime| since.elapsed().unwrap_or_default().as_secs();
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let error = history
        .error
        .as_ref()
        .map(|(at, message)| json!({ "at": seconds(*at), "age": age(*at), "message": message }));
    let config = json!({
        "version": history.version,
        "loadedAt": seconds(history.loaded_at),
        "age": age(history.loaded_at),
        "current": history.error.is_none(),
        "lastError": error,
        "failedReloads": history.failures,
        "waitsForRestart": history.waiting,
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
