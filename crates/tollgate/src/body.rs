//! The body of a response that may come from the service or from the limiter.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of the inner service, untouched, or a short one of the limiter.
    ///
    /// Data and error are those of the inner body, so that a service behind the layer
    /// fits wherever it fitted without it.
    #[derive(Clone, Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Clone, Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        // `None` once it was read, and never an empty chunk.
        Full { data: Option<Bytes> },
    }
}

impl<B> Body<B> {
    /// The body of the inner service.
    pub const fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body } }
    }

    /// These bytes and nothing else.
    pub fn full(data: impl Into<Bytes>) -> Self {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        Self { kind: Kind::Full { data } }
    }

    /// No bytes at all.
    pub const fn empty() -> Self {
        Self { kind: Kind::Full { data: None } }
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
            KindProjection::Inner { body } => body.poll_frame(cx),
            KindProjection::Full { data } => Poll::Ready(data.take().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Full { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Full { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}

/// Which body a response has behind the layer.
pub trait BodyMode<B>: Send + Sync + 'static {
    /// The body behind the layer, where that of the service is `B`.
    type Body;

    /// The body of the service.
    fn inner(body: B) -> Self::Body;

    /// The body of a denial.
    fn full(data: Bytes) -> Self::Body;
}

/// Responses carry a [`Body`], which goes around any other: the default.
#[derive(Clone, Copy, Debug)]
pub struct AnyBody;

impl<B> BodyMode<B> for AnyBody {
    type Body = Body<B>;

    fn inner(body: B) -> Body<B> {
        Body::inner(body)
    }

    fn full(data: Bytes) -> Body<B> {
        Body::full(data)
    }
}

/// Responses carry the body of the service, which can be made of bytes: that of axum, or
/// `http_body_util::Full`.
///
/// axum puts a body that is not its own into a box; with its own it need not.
#[derive(Clone, Copy, Debug)]
pub struct SameBody;

impl<B: From<Bytes>> BodyMode<B> for SameBody {
    type Body = B;

    fn inner(body: B) -> B {
        body
    }

    fn full(data: Bytes) -> B {
        data.into()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body::Body as _;
    use http_body_util::Full;

    use super::*;

    fn read(body: &mut Body<Full<Bytes>>) -> Option<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("a body in memory is always ready"),
        }
    }

    #[test]
    fn a_full_body_knows_its_size_and_its_end() {
        let mut body = Body::full("denied");
        assert_eq!(body.size_hint().exact(), Some(6));
        assert!(!body.is_end_stream());
        assert_eq!(read(&mut body).unwrap(), "denied");
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(body.is_end_stream());
        assert_eq!(read(&mut body), None);
    }

    #[test]
    fn an_empty_body_has_no_frame() {
        for mut body in [Body::empty(), Body::full("")] {
            assert!(body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(0));
            assert_eq!(read(&mut body), None);
        }
    }

    #[test]
    fn an_inner_body_passes_through() {
        let mut body = Body::inner(Full::new(Bytes::from("hello")));
        assert_eq!(body.size_hint().exact(), Some(5));
        assert_eq!(read(&mut body).unwrap(), "hello");
        assert!(body.is_end_stream());
    }
}
