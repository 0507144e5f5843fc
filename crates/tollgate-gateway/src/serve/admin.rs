//! Where operators look, never on a public listener.

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
use tollgate::status::Inspect;
use tower_service::Service;

use super::gateway::{Gateway, History};
use super::keys::KeySet;
use super::listener;

/// Serves the admin address for as long as it is polled. Of more than `most` connections the oldest
/// is closed: a health check is new, and must not wait for connections that do nothing.
pub(super) async fn serve<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    router: Router,
    listener: TcpListener,
    most: usize,
) {
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
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
            let answered = |request: Request<Incoming>| {
                let answer = answer(&gateway, request.method(), request.uri().path());
                let mut router = router.clone();
                async move {
                    match answer {
                        Some(answer) => Ok(answer),
                        // It is always ready.
                        None => router.call(request).await,
                    }
                }
            };
            if let Err(error) = serve_connection(stream, answered).await {
                tracing::debug!(%error, "a connection to the admin address ended early");
            }
        });
        open.push_back(served.abort_handle());
    }
}

/// Serves one connection to its end, which comes for whoever does not read, too.
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
        // What waits there for a reader is of no use to another.
        .max_buf_size(MOST_UNSENT)
        .serve_connection(TokioIo::new(pin!(stream)), service_fn(answered))
        .await
}

/// What the socket where operators connect is like, and each connection of it.
///
/// Left to itself the system takes in megabytes for a reader who has stopped reading, and only
/// then does anybody notice.
pub(super) fn prepare(socket: &TcpSocket) -> io::Result<()> {
    socket.set_send_buffer_size(SENT_AHEAD)
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
    if gateway.draining.has_begun() {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }));
    }
    let app = gateway.app();
    if !app.key_sets().iter().all(|set| set.was_tried()) {
        return respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "fetching keys" }));
    }
    // How many and not which: whoever asks, under whatever name, is told this. `/config` says
    // more, to whom the router lets in.
    match app.key_sets().iter().filter(|set| set.state().fetched.is_none()).count() {
        0 => respond(StatusCode::OK, &json!({ "status": "ready" })),
        missing => {
            respond(StatusCode::OK, &json!({ "status": "ready", "keySetsMissing": missing }))
        }
    }
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

/// How long an answer may lie unread: a line of the live page comes every second.
const UNREAD: Duration = Duration::from_secs(10);

/// How many bytes of an answer wait here, and of a request's head.
const MOST_UNSENT: usize = 16 << 10;

/// How many the system takes that have not reached the other side; Linux makes it twice as many.
/// Enough for metrics over a continent in a second or two.
const SENT_AHEAD: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    use super::*;

    /// The clock stands still for as long as bytes move.
    #[tokio::test(start_paused = true)]
    async fn whoever_stops_reading_loses_the_connection_and_held_little() {
        let (_, listener) =
            super::super::bind("admin", ([127, 0, 0, 1], 0).into(), prepare).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let endless = |_| async { Ok(Response::new(Body::new(Lines))) };
        let started = Instant::now();
        let served = timeout(100 * UNREAD, serve_connection(stream, endless)).await;
        assert!(served.expect("it ends").is_err());
        assert!(started.elapsed() < 2 * UNREAD, "{:?}", started.elapsed());
        // It gets what was on its way.
        let mut held = Vec::new();
        let _ = client.read_to_end(&mut held).await;
        assert!((LINE..1 << 18).contains(&held.len()), "{}", held.len());
    }

    /// One after the other, without an end.
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
