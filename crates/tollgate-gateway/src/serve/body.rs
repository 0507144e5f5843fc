//! Response bodies: from an upstream, or written by the gateway.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tollgate::body::{HoldPermits, InFlight};
use tollgate::headers;
use tollgate_llm::{Watch, WatchedBody};
use tollgate_proxy::{BodyError, ResponseBody};

#[derive(Debug)]
pub(crate) struct Body {
    body: WatchedBody<tollgate::body::Body<ResponseBody>>,
    /// Dropped before the last frame is returned, because the client may read the end before hyper
    /// drops the body.
    in_flight: Option<InFlight>,
    hides_cost: bool,
    /// Used instead of `body`.
    grpc: Option<tonic::body::Body>,
}

/// A limiter around the proxy returns the same body, which holds the request's permits until
/// it is complete or dropped.
impl HoldPermits for Body {
    fn full(data: Bytes) -> Self {
        data.into()
    }

    fn hold(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight).filter(|_| !self.is_end_stream());
        self
    }
}

impl Body {
    const fn new(body: tollgate::body::Body<ResponseBody>) -> Self {
        Self { body: WatchedBody::new(body), in_flight: None, hides_cost: false, grpc: None }
    }

    pub(crate) fn watched_by(mut self, watch: Box<dyn Watch + Send>) -> Self {
        self.body = self.body.watched_by(watch);
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
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(grpc) = &mut self.grpc {
            return Pin::new(grpc).poll_frame(cx).map_err(|_| BodyError::Unwanted);
        }
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let trailers = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut());
        let mut is_last = trailers.is_some() || self.body.is_end_stream();
        if let Some(trailers) = trailers.filter(|_| self.hides_cost) {
            trailers.remove(headers::COST);
        }
        is_last |= !matches!(frame, Some(Ok(_)));
        if let Some(in_flight) = &self.in_flight {
            in_flight.sends(frame.as_ref(), is_last);
        }
        if is_last {
            self.in_flight = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.grpc.as_ref().map_or_else(|| self.body.is_end_stream(), |grpc| grpc.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.grpc.as_ref().map_or_else(|| self.body.size_hint(), |grpc| grpc.size_hint())
    }
}
