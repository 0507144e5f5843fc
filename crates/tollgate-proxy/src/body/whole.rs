//! A body from the network that cannot be incomplete without an error.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::error::BodyError;

/// A message body. Unlike [`Incoming`], it fails if an HTTP/2 stream was reset before its end.
///
/// A server may reset a stream with `NO_ERROR` after a complete response, to stop the upload (RFC
/// 9113 §8.1). hyper reports every such reset as the end of the body, even if the sender has not
/// ended the stream. The receiver would take the incomplete body for the entire one.
#[derive(Debug)]
pub struct Whole {
    body: Incoming,
    is_http2: bool,
}

impl Whole {
    pub(crate) fn of(version: Version, body: Incoming) -> Self {
        Self { body, is_http2: version == Version::HTTP_2 }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, is_http2 } = self.get_mut();
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(None) if *is_http2 && !body.is_end_stream() => {
                Poll::Ready(Some(Err(BodyError::Reset)))
            }
            polled => polled.map_err(BodyError::Broken),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
