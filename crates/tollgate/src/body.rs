//! Response bodies behind a layer, the permits that they hold, and values from request bodies.
//!
//! The bodies of axum and tonic implement [`HoldPermits`], so responses behind a layer retain their
//! body type. For other services, [`any_body`](crate::RateLimitLayer::any_body) wraps each body in
//! a [`Body`]. The body holds the permits of concurrency limits until it is complete
//! ([`InFlight`]).
//!
//! Keys and costs depend on a request's head. An [`ExtractLayer`] adds a value from its body.

mod extract;

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Extensions, Response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

pub use self::extract::{Extract, ExtractFuture, ExtractLayer, ReplayedBody};

pin_project! {
    /// The inner service's body, or a short body from the layer. Its data and error types are the
    /// inner body's types.
    #[derive(Clone, Debug)]
    pub struct Body<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Clone, Debug)]
    enum BodyKind<B> {
        Inner { #[pin] body: B, in_flight: InFlight },
        // `None` after it was read, and never an empty chunk.
        Full { data: Option<Bytes> },
    }
}

impl<B> Body<B> {
    /// Wraps the body of the inner service.
    pub const fn inner(body: B) -> Self {
        Self { kind: BodyKind::Inner { body, in_flight: InFlight(None) } }
    }

    /// Makes a body from these bytes.
    pub fn full(data: impl Into<Bytes>) -> Self {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        Self { kind: BodyKind::Full { data } }
    }

    /// Makes an empty body.
    pub const fn empty() -> Self {
        Self { kind: BodyKind::Full { data: None } }
    }
}

impl<B: http_body::Body> Body<B> {
    pub(crate) fn holding(body: B, mut in_flight: InFlight) -> Self {
        if let Some(hold) = &in_flight.0 {
            if body.is_end_stream() {
                in_flight = InFlight(None);
            } else if let Some(length) = body.size_hint().exact() {
                hold.expect(length);
            }
        }
        Self { kind: BodyKind::Inner { body, in_flight } }
    }
}

/// Whether `body` is complete after this frame.
///
/// A server that runs the connection and its streams in several tasks may send the last frame
/// before it polls or drops the body again. So any state that the client's next request depends on
/// must settle before the last frame is returned.
pub(crate) fn is_last<B: http_body::Body>(
    body: &B,
    frame: Option<&Result<Frame<B::Data>, B::Error>>,
) -> bool {
    match frame {
        Some(Ok(frame)) => frame.is_trailers() || body.is_end_stream(),
        Some(Err(_)) | None => true,
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            // Passed through unchanged: most requests hold no permits.
            KindProjection::Inner { body, in_flight: InFlight(None) } => body.poll_frame(cx),
            KindProjection::Inner { mut body, in_flight } => {
                let frame = std::task::ready!(body.as_mut().poll_frame(cx));
                let is_last = is_last(&*body, frame.as_ref());
                in_flight.sends(frame.as_ref(), is_last);
                if is_last {
                    *in_flight = InFlight(None);
                }
                Poll::Ready(frame)
            }
            KindProjection::Full { data } => Poll::Ready(data.take().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.is_end_stream(),
            BodyKind::Full { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.size_hint(),
            BodyKind::Full { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}

/// A request's permits, held until this and all clones are dropped. Most requests have none.
#[derive(Clone, Default)]
pub struct InFlight(Option<Arc<dyn Hold>>);

/// State that a response body holds until its last frame.
pub(crate) trait Hold: Send + Sync {
    /// The complete body has this length.
    fn expect(&self, _length: u64) {}

    /// The body sends this data.
    fn data(&self, _data: &[u8]) {}

    /// The body is complete, and all its data was sent.
    fn complete(&self) {}
}

impl Hold for Vec<Arc<dyn Hold>> {}

impl InFlight {
    /// Shows the body's next frame to limits that
    /// [forgive by the body](crate::Limit::forgive_on_body). A body calls it before it returns the
    /// frame, with `is_last` if no further frame follows. Frames that a body does not show forgive no key.
    pub fn sends<E>(&self, frame: Option<&Result<Frame<Bytes>, E>>, is_last: bool) {
        let Some(hold) = &self.0 else { return };
        if let Some(Ok(frame)) = frame
            && let Some(data) = frame.data_ref()
        {
            hold.data(data);
        }
        if is_last && !matches!(frame, Some(Err(_))) {
            hold.complete();
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn until_dropped(hold: impl Hold + 'static) -> Self {
        Self(Some(Arc::new(hold)))
    }

    /// Makes the permits available to the handler, which may hold them longer than the response.
    /// The extensions alone do not hold them.
    pub(crate) fn hand_over(&self, extensions: &mut Extensions) {
        if let Some(hold) = &self.0 {
            extensions.get_or_insert_default::<Permits>().0.push(Arc::downgrade(hold));
        }
    }

    /// Returns a request's permits, for a task that outlives the response, such as a WebSocket.
    /// They are returned when this and all clones are dropped. In nested layers it has the permits
    /// of all layers.
    ///
    /// With the feature `axum`, `InFlight` is also an extractor.
    pub fn of_request(extensions: &Extensions) -> Self {
        let permits = extensions.get::<Permits>().into_iter().flat_map(|permits| &permits.0);
        let holds: Vec<_> = permits.filter_map(Weak::upgrade).collect();
        if holds.is_empty() { Self(None) } else { Self::until_dropped(holds) }
    }
}

/// A request's permits, from all layers around the handler.
#[derive(Clone, Default)]
struct Permits(Vec<Weak<dyn Hold>>);

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InFlight").field(&self.0.is_some()).finish()
    }
}

/// How a layer returns response bodies: [`SameBody`] by default, or [`AnyBody`]. The trait is
/// sealed, so later versions can add methods.
pub trait BodyMode<B>: sealed::Sealed + Send + Sync + 'static {
    /// The layer's body type if the service's body type is `B`.
    type Body;

    /// Makes the layer's response. Its body holds the permits until it is complete.
    fn respond<E>(
        polled: Poll<Result<Response<B>, E>>,
        in_flight: InFlight,
    ) -> Poll<Result<Response<Self::Body>, E>>;

    /// Makes the response body for a denial.
    fn full(data: Bytes) -> Self::Body;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::AnyBody {}
    impl Sealed for super::SameBody {}
}

/// Body mode for any service: wraps the service's response body in a [`Body`].
#[derive(Clone, Copy, Debug)]
pub struct AnyBody;

impl<B: http_body::Body> BodyMode<B> for AnyBody {
    type Body = Body<B>;

    #[inline]
    fn respond<E>(
        polled: Poll<Result<Response<B>, E>>,
        in_flight: InFlight,
    ) -> Poll<Result<Response<Body<B>>, E>> {
        polled.map_ok(|response| response.map(|body| Body::holding(body, in_flight)))
    }

    fn full(data: Bytes) -> Body<B> {
        Body::full(data)
    }
}

/// Body mode for services with a body type that implements [`HoldPermits`], such as axum's and
/// tonic's: responses retain the body type. This is the default.
#[derive(Clone, Copy, Debug)]
pub struct SameBody;

impl<B: HoldPermits> BodyMode<B> for SameBody {
    type Body = B;

    /// Usually returns the response unchanged, because `map` moves all its parts.
    #[inline]
    fn respond<E>(
        polled: Poll<Result<Response<B>, E>>,
        in_flight: InFlight,
    ) -> Poll<Result<Response<B>, E>> {
        if in_flight.is_empty() {
            return polled;
        }
        polled.map_ok(|response| response.map(|body| body.hold(in_flight)))
    }

    fn full(data: Bytes) -> B {
        B::full(data)
    }
}

/// A response body that a layer returns without a wrapper. The layer makes its own responses from
/// bytes, and the body holds the permits of concurrency limits ([`InFlight`]) until it is complete.
///
/// Implement it for your own body type, or wrap responses with
/// [`any_body`](crate::RateLimitLayer::any_body). Otherwise the permits of a streamed response
/// would be returned when it starts, because the layer cannot see the end of the body.
///
/// ```
/// use bytes::Bytes;
/// use tollgate::body::{HoldPermits, InFlight};
///
/// struct Page {
///     text: Bytes,
///     in_flight: Option<InFlight>,
/// }
///
/// impl HoldPermits for Page {
///     fn full(text: Bytes) -> Self {
///         Self { text, in_flight: None }
///     }
///
///     // Its `http_body::Body` calls `InFlight::sends` with each frame, and sets the field to `None`
///     // before it returns the last frame.
///     fn hold(self, in_flight: InFlight) -> Self {
///         Self { in_flight: Some(in_flight), ..self }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the layer cannot return responses with the body type `{Self}` unchanged",
    note = "call `.any_body()` on the layer: responses then carry a `tollgate::body::Body` around the \
            body of the service",
    note = "for the bodies of axum and tonic enable the feature `axum` or `tonic` of tollgate",
    note = "or implement `tollgate::body::HoldPermits` for your own body type"
)]
pub trait HoldPermits: Sized + 'static {
    /// Makes the body for a response that the layer creates.
    fn full(data: Bytes) -> Self;

    /// Stores the permits in the body. The body must drop them before it returns its last frame,
    /// because the client may read that frame before the server drops the body.
    #[must_use]
    fn hold(self, in_flight: InFlight) -> Self;
}

#[cfg(feature = "axum")]
impl HoldPermits for axum::body::Body {
    fn full(data: Bytes) -> Self {
        data.into()
    }

    fn hold(self, in_flight: InFlight) -> Self {
        Self::new(Body::holding(self, in_flight))
    }
}

#[cfg(feature = "tonic")]
impl HoldPermits for tonic::body::Body {
    fn full(data: Bytes) -> Self {
        Self::new(Full::new(data))
    }

    fn hold(self, in_flight: InFlight) -> Self {
        Self::new(Body::holding(self, in_flight))
    }
}

/// The full body is in memory, so the service has finished and the permits are returned
/// immediately.
impl HoldPermits for Full<Bytes> {
    fn full(data: Bytes) -> Self {
        Self::new(data)
    }

    fn hold(self, in_flight: InFlight) -> Self {
        let mut copy = self.clone();
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(frame) = Pin::new(&mut copy).poll_frame(&mut cx) {
            in_flight.sends(frame.as_ref(), true);
        }
        self
    }
}

/// Like [`Full`].
impl HoldPermits for Bytes {
    fn full(data: Bytes) -> Self {
        data
    }

    fn hold(self, in_flight: InFlight) -> Self {
        in_flight.sends(Some(&Ok::<_, Infallible>(Frame::data(self.clone()))), true);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &mut Body<Full<Bytes>>) -> Option<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("a body in memory is always ready"),
        }
    }

    #[test]
    fn full_body_reports_size_and_completion() {
        let mut body = Body::full("denied");
        assert_eq!(body.size_hint().exact(), Some(6));
        assert!(!body.is_end_stream());
        assert_eq!(read(&mut body).unwrap(), "denied");
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(body.is_end_stream());
        assert_eq!(read(&mut body), None);
    }

    #[test]
    fn empty_body_has_no_frame() {
        for mut body in [Body::empty(), Body::full("")] {
            assert!(body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(0));
            assert_eq!(read(&mut body), None);
        }
    }

    #[test]
    fn inner_body_passes_through() {
        let mut body = Body::inner(Full::new(Bytes::from("hello")));
        assert_eq!(body.size_hint().exact(), Some(5));
        assert_eq!(read(&mut body).unwrap(), "hello");
        assert!(body.is_end_stream());
    }
}
