//! Serves a connection's requests with hyper, which decides about framing and versions.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::SetOnce;

use super::activity::{Activity, Patience, Working};
use super::invalid_head::ChooseAnswer;
use super::lifetime::Lifetime;
use super::streams::Streams;
use super::watched::Watched;
use crate::body::upload::Received;
use crate::flow::{Guard, Paced, WaitingBytes};
use crate::head::fields::MOST_HEAD_BYTES;
use crate::upstream::forward::LongPause;

/// How to serve a client's connection. `F` returns whether other clients wait for a connection, so
/// an idle one closes sooner.
#[derive(Clone, Debug)]
pub struct Serving<F> {
    pub patience: Patience,
    pub heads: HeadLimits,
    pub faults: ChooseAnswer,
    /// Set when the connection should close after its requests.
    pub draining: Arc<SetOnce<()>>,
    pub is_crowded: F,
}

/// The limits for a request's head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    pub http1_bytes: usize,
    pub http2_bytes: u32,
    /// The number of headers over HTTP/1, if it differs from hyper's limit.
    pub http1_headers: Option<usize>,
    /// How many streams a client may open and reset before they are accepted. More resets are an
    /// attack (CVE-2023-44487).
    pub resets: usize,
}

impl HeadLimits {
    /// The limits for clients on the internet.
    pub const CLIENT: Self = Self {
        http1_bytes: MOST_HEAD_BYTES,
        http2_bytes: MOST_HEAD_BYTES as u32,
        http1_headers: None,
        resets: RESETS,
    };
}

/// Serves a connection until it closes, and drops `kept` after its socket.
///
/// `answer` receives each request, and a flag to set when a request body over HTTP/1 is complete.
/// It returns the response, and a guard that is dropped after the response's last byte.
///
/// # Errors
/// The connection failed or exceeded a time limit.
pub async fn serve<S, K, A, R, B, G, F>(
    stream: S,
    is_http1: bool,
    kept: K,
    serving: &Serving<F>,
    answer: A,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    K: Unpin + Send + 'static,
    A: Fn(Request<Incoming>, Option<Received>) -> R,
    R: Future<Output = (Response<B>, G)> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    G: Guard + Send + 'static,
    F: Fn() -> bool,
{
    let Serving { patience, heads, faults, draining, is_crowded } = serving;
    let lifetime = Lifetime { patience: *patience, is_crowded };
    let activity = Activity::new(draining);
    let stream = TokioIo::new(Watched::new(stream, Arc::clone(&activity), *faults, kept));
    let service = service_fn(|mut request: Request<Incoming>| {
        let working = Working::begin(&activity, request.version() == Version::HTTP_2);
        let version = request.version();
        let upload = Upload::of(&mut request);
        let received = upload.as_ref().map(|upload| upload.received.clone());
        // Boxed, so the future's memory is freed at the response head, and not with the connection.
        let answer = Box::pin(answer(request, received));
        async move {
            let (response, guard) = answer.await;
            Ok::<_, Infallible>(finished(response, version, upload, Answer { working, guard }))
        }
    });
    if is_http1 {
        let mut builder = http1::Builder::new();
        // hyper's timeout would include the time between requests, which has a longer limit.
        builder.header_read_timeout(None).max_buf_size(heads.http1_bytes).half_close(true);
        if let Some(most) = heads.http1_headers {
            builder.max_headers(most);
        }
        let serving = builder.serve_connection(stream, service).with_upgrades();
        let stop = http1::UpgradeableConnection::graceful_shutdown;
        return lifetime.drive(serving, stop, &activity).await;
    }
    // Boxed, because it has room for both versions, and most connections negotiate theirs.
    Box::pin(async {
        let builder = builder(*patience, *heads);
        let serving = builder.serve_connection_with_upgrades(stream, service);
        let stop = auto::UpgradeableConnection::graceful_shutdown;
        lifetime.drive(serving, stop, &activity).await
    })
    .await
}

fn builder(patience: Patience, heads: HeadLimits) -> auto::Builder<Streams> {
    let streams = Streams { stall: patience.stall, in_connection: WaitingBytes::default() };
    let mut builder = auto::Builder::new(streams);
    builder.http1().header_read_timeout(None).max_buf_size(heads.http1_bytes).half_close(true);
    if let Some(most) = heads.http1_headers {
        builder.http1().max_headers(most);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(UPLOAD_BYTES)
        .initial_connection_window_size(UPLOADS_BYTES)
        .max_pending_accept_reset_streams(heads.resets)
        .max_local_error_reset_streams(RESETS)
        .max_header_list_size(heads.http2_bytes)
        .keep_alive_interval(patience.keep_alive)
        .keep_alive_timeout(patience.head);
    builder
}

/// Adapts a response to its connection.
fn finished<B: Body<Data = Bytes>, G>(
    mut response: Response<B>,
    version: Version,
    upload: Option<Upload>,
    answer: Answer<G>,
) -> Response<Paced<B, Answer<G>>> {
    let working = &answer.working;
    if let Some(LongPause(pause)) = response.extensions().get() {
        working.may_pause(*pause);
    }
    let is_http1 = version <= Version::HTTP_11;
    if is_http1 && !response.status().is_informational() {
        let unread = upload.filter(|upload| !upload.received.is_whole());
        if unread.is_some() {
            working.leaves_unread();
        }
        let large = unread.filter(|upload| !upload.is_small);
        if working.is_draining() || large.is_some() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(Upload { connection, .. }) = large {
            tokio::spawn(end(connection));
        }
    }
    if version == Version::HTTP_10 && closes(&response) {
        // Otherwise hyper would announce a persistent connection.
        *response.version_mut() = version;
    }
    let hides_end = is_http1 && has_length_of_another(&response);
    let Answer { working, guard } = answer;
    let answer = Answer { working: working.answers(), guard };
    response.map(|body| Paced::response(body, answer).hiding_end(hides_end))
}

/// A response in flight.
#[derive(Debug)]
struct Answer<G> {
    working: Working,
    guard: G,
}

impl<G: Guard> Guard for Answer<G> {
    fn sent(&mut self, bytes: usize) {
        self.guard.sent(bytes);
    }
}

/// Whether the connection closes after a response to HTTP/1.0. Without a length, only the close
/// shows the end of the body.
fn closes<B: Body>(response: &Response<B>) -> bool {
    let (headers, body) = (response.headers(), response.body());
    let has_length = body.is_end_stream() || body.size_hint().exact().is_some();
    headers.contains_key(CONNECTION) || !has_length && !headers.contains_key(CONTENT_LENGTH)
}

/// Whether `Content-Length` describes the body of another response.
fn has_length_of_another<B>(response: &Response<B>) -> bool {
    if response.status() != StatusCode::NOT_MODIFIED {
        return false;
    }
    let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &HeaderValue| {
        let is_digits = length.as_bytes().iter().all(u8::is_ascii_digit);
        is_digits && length.to_str().is_ok_and(|it| it.parse::<u64>().is_ok())
    };
    lengths.next().is_some_and(is_number) && lengths.next().is_none()
}

/// Shuts down a connection that hyper hands over after its last response. hyper does so if the
/// request had an `Upgrade` header, and otherwise shuts the connection down itself.
async fn end(connection: OnUpgrade) {
    if let Ok(stream) = connection.await {
        let _ = TokioIo::new(stream).shutdown().await;
    }
}

/// A request body over HTTP/1.
struct Upload {
    received: Received,
    /// Whether hyper may reuse the connection although the body was not read. hyper discards the
    /// bytes that have arrived, and closes the connection if the body is incomplete.
    is_small: bool,
    /// A request with a body is never upgraded.
    connection: OnUpgrade,
}

impl Upload {
    fn of(request: &mut Request<Incoming>) -> Option<Self> {
        let body = request.body();
        if request.version() > Version::HTTP_11 || body.is_end_stream() {
            return None;
        }
        let is_small = body.size_hint().upper().is_some_and(|size| size <= SMALL_BODY);
        let connection = hyper::upgrade::on(request);
        Some(Self { received: Received::default(), is_small, connection })
    }
}

/// The maximum number of requests in flight on one HTTP/2 connection.
const STREAMS: u32 = 100;

/// How many body bytes per request may be buffered before the target reads the body.
const UPLOAD_BYTES: u32 = 128 << 10;

/// The same for all requests on a connection together.
const UPLOADS_BYTES: u32 = 1 << 20;

/// How many streams a client on the internet may reset.
const RESETS: usize = 32;

/// A body up to this size usually arrives as a single piece, so hyper can discard it.
const SMALL_BODY: u64 = 8 << 10;
