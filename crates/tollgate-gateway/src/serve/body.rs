//! The body of a response: from an upstream, or written by the gateway.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::body::{HoldPermits, InFlight};
use tollgate::headers;

use tollgate_proxy::{BodyError, ResponseBody};

pin_project! {
    #[derive(Debug)]
    pub(crate) struct Body {
        #[pin]
        kind: tollgate::body::Body<ResponseBody>,
        // Both are dropped before the last frame is returned, because the client may read the end
        // before hyper drops the body.
        watch: Option<Box<dyn Watch>>,
        in_flight: Option<InFlight>,
        hides_cost: bool,
        last: Option<Box<Last>>,
        // Used instead of `kind`.
        grpc: Option<tonic::body::Body>,
    }
}

/// The last frame, or `None` for the end. It follows the bytes that a watch retained.
#[derive(Debug)]
struct Last {
    frame: Option<Result<Frame<Bytes>, BodyError>>,
    /// Whether the receiver has had time to send these bytes.
    yielded: bool,
}

/// A limiter around the proxy returns the same body, which holds the request's permits until it
/// ends.
impl HoldPermits for Body {
    fn full(data: Bytes) -> Self {
        data.into()
    }

    fn hold(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight).filter(|_| !self.is_end_stream());
        self
    }
}

/// Reads a body as it is forwarded. Dropped when the body is complete or the client stops reading.
pub(crate) trait Watch: fmt::Debug + Send {
    /// Returns the bytes that pass on.
    fn data(&mut self, data: Bytes) -> Bytes;

    /// Returns the retained bytes when the body ends. After an error, the body is not complete.
    fn rest(&mut self, is_complete: bool) -> Bytes;

    /// Whether fewer bytes may be forwarded than arrived.
    fn shortens(&self) -> bool {
        false
    }

    fn trailers(&mut self, trailers: &HeaderMap);
}

impl Body {
    const fn new(kind: tollgate::body::Body<ResponseBody>) -> Self {
        let (watch, in_flight, last, grpc) = (None, None, None, None);
        Self { kind, watch, in_flight, hides_cost: false, last, grpc }
    }

    pub(crate) fn watched_by(mut self, watch: Box<dyn Watch>) -> Self {
        self.watch = Some(watch).filter(|_| !self.is_end_stream());
        self
    }

    /// Drops the trailer with the request's cost.
    pub(crate) const fn hiding_cost(mut self) -> Self {
        self.hides_cost = true;
        self
    }

    pub(crate) const fn empty() -> Self {
        Self::new(tollgate::body::Body::empty())
    }
}

impl From<ResponseBody> for Body {
    fn from(body: ResponseBody) -> Self {
        Self::new(tollgate::body::Body::inner(body))
    }
}

impl From<tonic::body::Body> for Body {
    fn from(grpc: tonic::body::Body) -> Self {
        Self { grpc: Some(grpc), ..Self::empty() }
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::new(tollgate::body::Body::full(data))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut this = self.project();
        if let Some(grpc) = this.grpc {
            return Pin::new(grpc).poll_frame(cx).map_err(|_| BodyError::Unwanted);
        }
        if let Some(mut last) = this.last.take() {
            // hyper drops unsent bytes when a body fails, so it may first send the rest.
            if matches!(last.frame, Some(Err(_))) && !std::mem::replace(&mut last.yielded, true) {
                *this.last = Some(last);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(last.frame);
        }
        let (frame, is_last) = loop {
            let mut frame = ready!(this.kind.as_mut().poll_frame(cx));
            let Some(Ok(piece)) = &mut frame else { break (frame, true) };
            if let (Some(watch), Some(data)) = (this.watch.as_mut(), piece.data_ref()) {
                *piece = Frame::data(watch.data(data.clone()));
            }
            if let Some(trailers) = piece.trailers_mut() {
                if let Some(watch) = this.watch.as_mut() {
                    watch.trailers(trailers);
                }
                if *this.hides_cost {
                    trailers.remove(headers::COST);
                }
            }
            let is_last = piece.is_trailers() || this.kind.is_end_stream();
            // A watch may retain all bytes.
            if is_last || piece.data_ref().is_none_or(|data| !data.is_empty()) {
                break (frame, is_last);
            }
        };
        if !is_last {
            return Poll::Ready(frame);
        }
        let is_complete = !matches!(frame, Some(Err(_)));
        let rest = this.watch.take().map_or_else(Bytes::new, |mut it| it.rest(is_complete));
        *this.in_flight = None;
        if rest.is_empty() {
            return Poll::Ready(frame);
        }
        Poll::Ready(Some(Ok(Frame::data(match frame {
            Some(Ok(piece)) if piece.is_data() => {
                let data = piece.into_data().unwrap_or_default();
                [data, rest].concat().into()
            }
            frame => {
                *this.last = Some(Box::new(Last { frame, yielded: false }));
                rest
            }
        }))))
    }

    fn is_end_stream(&self) -> bool {
        // A watch that shortens the body may retain its last bytes.
        if self.last.is_some() || self.watch.as_ref().is_some_and(|watch| watch.shortens()) {
            return false;
        }
        self.grpc.as_ref().map_or_else(|| self.kind.is_end_stream(), |grpc| grpc.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.watch.as_ref().is_some_and(|watch| watch.shortens()) {
            return SizeHint::default();
        }
        self.grpc.as_ref().map_or_else(|| self.kind.size_hint(), |grpc| grpc.size_hint())
    }
}
