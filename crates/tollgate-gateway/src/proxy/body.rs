//! Bodies pass through piece by piece, at the speed of the slower side.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tollgate::body::{BodyMode, InFlight};

use super::entrance::MOST_FIELDS;
use super::failures::Health;
use super::lease::Lease;
use super::rewrite::Edits;
use super::source::{Release, Source};
use super::{forwarded, hop};
use crate::flow::{Paced, Piece};

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("no piece of the body came for {0:?}")]
    Idle(Duration),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error("the response ended before the body of the request")]
    Unwanted,
    #[error("the body is too large")]
    TooLarge,
    #[error("more than {MOST_FIELDS} trailers came")]
    Trailers,
}

pin_project! {
    /// A body with a limit on the pauses of its sender.
    ///
    /// The limit counts only while the receiver waits for a piece. A slow receiver does not
    /// poll the body, so memory holds only the pieces under way.
    #[derive(Debug)]
    pub struct Timed<B> {
        #[pin]
        body: B,
        // Boxed, because hyper's client requires bodies that are `Unpin`.
        pause: Option<Pin<Box<Sleep>>>,
        is_silent: bool,
        idle: Duration,
        sender: Sender,
        // The reason for an early end. It is held back until the earlier pieces are sent.
        broken: Option<BodyError>,
    }
}

#[derive(Debug)]
enum Sender {
    Client(Arc<Upload>),
    /// The connection is free for other requests when the body has ended.
    Upstream(Arc<Health>, Option<Lease>),
}

impl<B: http_body::Body> Timed<B> {
    pub(super) const fn request(body: B, idle: Duration, upload: Arc<Upload>) -> Self {
        Self::new(body, idle, Sender::Client(upload))
    }

    /// The body of a response. If it breaks off, `health` records the failure.
    pub(super) fn response(
        body: B,
        idle: Duration,
        health: Arc<Health>,
        lease: Option<Lease>,
    ) -> Self {
        let lease = lease.and_then(|lease| {
            if !body.is_end_stream() {
                return Some(lease);
            }
            lease.release();
            None
        });
        Self::new(body, idle, Sender::Upstream(health, lease))
    }

    const fn new(body: B, idle: Duration, sender: Sender) -> Self {
        Self { body, pause: None, is_silent: false, idle, sender, broken: None }
    }
}

impl<B> http_body::Body for Timed<B>
where
    B: http_body::Body<Data = Bytes>,
    BodyError: From<B::Error>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut this = self.project();
        if this.broken.is_none() {
            let error = match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => error.into(),
                Poll::Ready(frame) => {
                    *this.is_silent = false;
                    if frame.is_none() || this.body.is_end_stream() {
                        this.sender.ended();
                    }
                    return Poll::Ready(frame.map(|frame| this.sender.clean(frame?)));
                }
                Poll::Pending => {
                    this.sender.waits();
                    let silence = this.pause.get_or_insert_with(|| Box::pin(sleep(*this.idle)));
                    if !*this.is_silent {
                        *this.is_silent = true;
                        silence.as_mut().reset(Instant::now() + *this.idle);
                    }
                    ready!(silence.as_mut().poll(cx));
                    BodyError::Idle(*this.idle)
                }
            };
            let Sender::Upstream(health, _) = this.sender else {
                return Poll::Ready(Some(Err(error)));
            };
            let what = "the upstream broke off in the body of a response";
            health.failed("response-broke-off", &what, Some(&error));
            *this.broken = Some(error);
            // hyper drops unsent bytes when a body fails, and with them perhaps the head.
            let rest = this.pause.get_or_insert_with(|| Box::pin(sleep(REST)));
            rest.as_mut().reset(Instant::now() + REST);
        }
        if let Some(rest) = this.pause {
            ready!(rest.as_mut().poll(cx));
        }
        Poll::Ready(this.broken.take().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Sender {
    fn clean(&self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if let (Self::Client(upload), Some(data)) = (self, frame.data_ref())
            && !upload.takes(data)
        {
            return Err(BodyError::TooLarge);
        }
        let trailers = frame.trailers_mut();
        match self {
            Self::Client(upload) => {
                upload.moved();
                if let Some(trailers) = trailers {
                    forwarded::clean_trailers(trailers);
                    if let Some(edits) = &upload.edits {
                        edits.clear(trailers);
                    }
                    if trailers.len() > MOST_FIELDS {
                        return Err(BodyError::Trailers);
                    }
                }
            }
            Self::Upstream(..) => {
                if let Some(trailers) = trailers {
                    hop::remove_framing(trailers);
                }
            }
        }
        Ok(frame)
    }

    fn waits(&self) {
        if let Self::Client(upload) = self {
            upload.waits();
        }
    }

    fn ended(&mut self) {
        match self {
            Self::Client(upload) => upload.ended(),
            Self::Upstream(_, lease) => {
                if let Some(lease) = lease.take() {
                    lease.release();
                }
            }
        }
    }
}

/// The pause before a body breaks off, in which hyper sends the received part of the response.
const REST: Duration = Duration::from_millis(100);

/// The progress of a request's body. The task that waits for the response reads it.
#[derive(Debug)]
pub(super) struct Upload {
    began: Instant,
    moved_at: AtomicU64,
    waits: AtomicBool,
    received: Received,
    left: AtomicU64,
    /// The changes to the header, which trailers must not undo.
    edits: Option<Arc<Edits>>,
}

/// Whether the whole body of a request has come. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(Arc<AtomicBool>);

impl Received {
    pub(crate) fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Upload {
    pub(super) fn new(received: Received, most: u64, edits: Option<Arc<Edits>>) -> Arc<Self> {
        let (moved_at, waits) = (AtomicU64::new(0), AtomicBool::new(false));
        let (began, left) = (Instant::now(), AtomicU64::new(most));
        Arc::new(Self { began, moved_at, waits, received, left, edits })
    }

    /// Subtracts a piece from the bytes that may still come. False if the body is too large.
    fn takes(&self, data: &Bytes) -> bool {
        // Only one task reads the body.
        let left = self.left.load(Ordering::Relaxed).checked_sub(data.len() as u64);
        left.inspect(|left| self.left.store(*left, Ordering::Relaxed)).is_some()
    }

    /// The time since which only the response is missing: the time of the last piece, or now
    /// while the client still has to send one.
    pub(super) fn complete_since(&self) -> Instant {
        if self.waits.load(Ordering::Relaxed) {
            return Instant::now();
        }
        self.began + Duration::from_millis(self.moved_at.load(Ordering::Relaxed))
    }

    fn moved(&self) {
        // Milliseconds in a `u64` last for 500 million years.
        let passed = self.began.elapsed().as_millis() as u64;
        self.moved_at.store(passed, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }

    fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    fn ended(&self) {
        self.received.0.store(true, Ordering::Relaxed);
    }
}

pin_project! {
    #[derive(Debug)]
    pub struct Body {
        #[pin]
        kind: tollgate::Body<Timed<Source>>,
        // Dropped at the end of the body, because hyper may keep the body itself for longer.
        watch: Option<Box<dyn Watch>>,
        // Dropped at the end, too.
        in_flight: Option<InFlight>,
        // Dropped at the end, too.
        request: Option<Release>,
        dropped_trailer: Option<HeaderName>,
        // Used instead of `kind`.
        grpc: Option<tonic::body::Body>,
    }
}

/// A limiter around the proxy returns the same body. The end of that body ends the request's
/// permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UntilItsEnd;

impl BodyMode<Body> for UntilItsEnd {
    type Body = Body;

    fn inner(mut body: Body, in_flight: InFlight) -> Body {
        body.in_flight = Some(in_flight);
        body
    }

    fn full(data: Bytes) -> Body {
        Body::new(tollgate::Body::full(data))
    }
}

/// Reads a body while it passes. Dropped at the end of the body, or when the client stops reading.
pub(crate) trait Watch: fmt::Debug + Send {
    fn data(&mut self, data: &Bytes);

    fn trailers(&mut self, trailers: &HeaderMap);
}

impl Body {
    const fn new(kind: tollgate::Body<Timed<Source>>) -> Self {
        Self {
            kind,
            watch: None,
            in_flight: None,
            request: None,
            dropped_trailer: None,
            grpc: None,
        }
    }

    pub(crate) fn watched_by(mut self, watch: Box<dyn Watch>) -> Self {
        self.watch = Some(watch);
        self
    }

    pub(crate) fn without_trailer(mut self, name: HeaderName) -> Self {
        self.dropped_trailer = Some(name);
        self
    }

    pub const fn empty() -> Self {
        Self::new(tollgate::Body::empty())
    }

    pub(super) const fn of(body: Timed<Source>) -> Self {
        Self::new(tollgate::Body::inner(body))
    }

    /// The body of a response. At its end, the body of its request is dropped.
    pub(super) fn releasing(mut self, request: Option<Release>) -> Self {
        self.request = request;
        self
    }
}

impl From<tonic::body::Body> for Body {
    fn from(grpc: tonic::body::Body) -> Self {
        Self { grpc: Some(grpc), ..Self::empty() }
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::new(tollgate::Body::full(data))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.project();
        if let Some(grpc) = this.grpc {
            return Pin::new(grpc).poll_frame(cx).map_err(|_| BodyError::Unwanted);
        }
        let mut frame = ready!(this.kind.poll_frame(cx));
        match &mut frame {
            Some(Ok(frame)) => {
                if let (Some(watch), Some(data)) = (this.watch.as_mut(), frame.data_ref()) {
                    watch.data(data);
                }
                if let Some(trailers) = frame.trailers_mut() {
                    if let Some(watch) = this.watch {
                        watch.trailers(trailers);
                    }
                    if let Some(name) = this.dropped_trailer {
                        trailers.remove(&*name);
                    }
                }
            }
            None | Some(Err(_)) => {
                *this.watch = None;
                *this.in_flight = None;
                *this.request = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.grpc.as_ref().map_or_else(|| self.kind.is_end_stream(), |grpc| grpc.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.grpc.as_ref().map_or_else(|| self.kind.size_hint(), |grpc| grpc.size_hint())
    }
}

/// The body of a request to an upstream, or `None`. Boxed, because each connection has a buffer for
/// dozens of requests, and most requests have no body.
#[derive(Default)]
pub(crate) struct Sent(Option<Pin<Box<Paced<Timed<Source>>>>>);

impl Sent {
    pub(super) fn of(body: Timed<Source>) -> Self {
        Self(Some(Box::pin(Paced::request(body))))
    }
}

impl http_body::Body for Sent {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        match &mut self.0 {
            Some(body) => body.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
