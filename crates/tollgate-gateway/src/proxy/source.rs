use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::timed::BodyError;

#[derive(Debug)]
pub(super) enum Source {
    Response(Incoming),
    Request(Arc<Mutex<Held>>),
}

#[derive(Debug)]
pub(super) struct Held {
    body: Option<Incoming>,
    reader: Option<Waker>,
}

/// Drops the body of a request when the response to the request ends.
///
/// The upstream may have answered early and never read the rest. hyper keeps the body as long as it
/// waits for the upstream, and reads nothing from the client as long as the body exists: the client
/// would go on sending and never read the response.
#[derive(Debug)]
pub(super) struct Release(Arc<Mutex<Held>>);

impl Source {
    pub(super) fn request(body: Incoming) -> (Self, Release) {
        let held = Arc::new(Mutex::new(Held { body: Some(body), reader: None }));
        (Self::Request(Arc::clone(&held)), Release(held))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Held { body, reader } =
            std::mem::replace(&mut *self.0.lock(), Held { body: None, reader: None });
        drop(body);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Body for Source {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match self.get_mut() {
            Self::Response(body) => Pin::new(body).poll_frame(cx),
            Self::Request(held) => {
                let Held { body, reader } = &mut *held.lock();
                let Some(body) = body else {
                    return Poll::Ready(Some(Err(BodyError::Unwanted)));
                };
                let polled = Pin::new(body).poll_frame(cx);
                if polled.is_pending() {
                    *reader = Some(cx.waker().clone());
                }
                polled
            }
        };
        polled.map_err(BodyError::Broken)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Response(body) => body.is_end_stream(),
            Self::Request(held) => held.lock().body.as_ref().is_some_and(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Response(body) => body.size_hint(),
            Self::Request(held) => {
                held.lock().body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
            }
        }
    }
}
