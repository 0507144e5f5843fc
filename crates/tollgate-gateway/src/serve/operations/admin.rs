//! The admin address for operators. Public listeners never serve it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
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
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;
use tokio_io_timeout::TimeoutStream;
use tollgate::denial::problem_response;
use tollgate::observe::Inspect;
use tower_service::Service;

use crate::serve::decide::key_sets::KeySet;
use crate::serve::decide::tenants::Numbers;
use crate::serve::edge::listener;
use crate::serve::gateway::{Gateway, History};

/// Serves the admin address while it is polled. Beyond `most` connections, the oldest is closed,
/// because idle connections must not delay a new health check.
pub(crate) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    router: Router,
    listener: TcpListener,
    most: usize,
) {
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                listener::rest(&error).await;
                continue;
            }
        };
        let (gateway, router) = (Arc::clone(&gateway), router.clone());
        open.retain(|connection| !connection.is_finished());
        if open.len() >= most
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let served = tokio::spawn(async move {
            let answered = |mut request: Request<Incoming>| {
                // The log of changes has it.
                request.extensions_mut().insert(peer);
                let answer = answer(&gateway, request.method(), request.uri().path());
                let mut router = router.clone();
                async move {
                    match answer {
                        Some(answer) => Ok(answer),
                        // The router is always ready.
                        None => router.call(request).await,
                    }
                }
            };
            if let Err(error) = serve_connection(stream, answered).await {
                tracing::debug!(%error, "a connection to the admin address failed");
            }
        });
        open.push_back(served.abort_handle());
    }
}

/// Serves one connection until it closes. A client that stops reading loses its connection.
async fn serve_connection<F>(
    stream: TcpStream,
    answered: impl Fn(Request<Incoming>) -> F,
) -> hyper::Result<()>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        // A small buffer, because unread answers waste memory.
        .max_buf_size(MOST_UNSENT)
        // A client may close its sending side after the request. If it is gone, writing to it fails,
        // and all answers are short or send something every few seconds.
        .half_close(true)
        .serve_connection(TokioIo::new(pin!(stream)), service_fn(answered))
        .await
}

/// Limits the send buffer of the admin socket and its connections.
///
/// By default the system buffers megabytes for a client that has stopped reading, and the gateway
/// would notice only when that buffer is full.
pub(crate) fn prepare(socket: &TcpSocket) -> io::Result<()> {
    socket.set_send_buffer_size(SENT_AHEAD)
}

/// Answers health checks from any client and with any `Host`, because probes know only an address.
/// For all other paths, the router checks the client and the `Host`.
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

/// Whether this replica should receive requests. Missing key sets do not count: if the key server
/// is down, no replica has the keys, and no replica would serve requests.
fn ready<St: Inspect>(gateway: &Gateway<St>) -> Response<Body> {
    if gateway.leaving.initialized() {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }));
    }
    let app = gateway.app();
    if !app.key_sets().iter().all(|set| set.was_tried()) {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "fetching keys" }));
    }
    // Only the number of missing sets, because any client can read this answer. `/config` lists the
    // sets, and the router checks its clients.
    match app.key_sets().iter().filter(|set| set.state().fetched.is_none()).count() {
        0 => respond(StatusCode::OK, &json!({ "status": "ready" })),
        missing => {
            respond(StatusCode::OK, &json!({ "status": "ready", "keySetsMissing": missing }))
        }
    }
}

pub(crate) fn read_only() -> Response<Body> {
    let (status, code) = (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed");
    let mut response =
        problem_response(status, Some(code), "This can only be read.").map(Body::from);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// The running configuration and its history. Times are seconds since 1970, or ages in seconds.
pub(crate) fn config(
    history: &History,
    key_sets: &[Arc<KeySet>],
    tenants: &[Arc<Numbers>],
) -> Response<Body> {
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
    let source = |numbers: &Arc<Numbers>| {
        let (tenants, error) = numbers.file().unzip();
        json!({
            "source": numbers.source().to_string(),
            "tenants": tenants,
            "lastError": error.flatten(),
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
        "tenants": tenants.iter().map(source).collect::<Vec<_>>(),
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

const PATIENCE: Duration = Duration::from_secs(60);

/// How long an answer may remain unread. The live page sends a line every second.
const UNREAD: Duration = Duration::from_secs(10);
const MOST_UNSENT: usize = 16 << 10;

/// The maximum bytes of an answer in the system's send buffer; Linux doubles this number. This is
/// enough to send metrics across a continent within a second or two.
const SENT_AHEAD: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    use super::*;

    /// The paused clock does not advance while bytes move.
    #[tokio::test(start_paused = true)]
    async fn stalled_reader_is_disconnected() {
        let (_, listener) =
            crate::serve::bind("admin", ([127, 0, 0, 1], 0).into(), prepare).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let endless = |_| async { Ok(Response::new(Body::new(Lines))) };
        let started = Instant::now();
        let served = timeout(100 * UNREAD, serve_connection(stream, endless)).await;
        assert!(served.expect("it ends").is_err());
        assert!(started.elapsed() < 2 * UNREAD, "{:?}", started.elapsed());
        // The client still gets the bytes that were already sent, which must be few.
        let mut held = Vec::new();
        let _ = client.read_to_end(&mut held).await;
        assert!((LINE..1 << 18).contains(&held.len()), "{}", held.len());
    }

    /// An endless body of lines.
    struct Lines;

    impl http_body::Body for Lines {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; LINE])))))
        }
    }

    const LINE: usize = 1_000;
}
