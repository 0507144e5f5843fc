use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::error::BodyError;
use super::request_body::RequestBody;
use crate::flow::size_with;

/// A request's body on its way to an upstream.
#[derive(Debug)]
pub(crate) struct RepeatableBody(Arc<Mutex<Repeatable>>);

#[derive(Debug, Default)]
struct Repeatable {
    body: Option<RequestBody>,
    reader: Option<Waker>,
    /// The pieces sent so far, kept while the request may have to be repeated.
    sent: Option<VecDeque<Bytes>>,
    /// Pieces to repeat, before the rest of the body.
    again: VecDeque<Bytes>,
}

/// Drops the request body when the response is complete.
///
/// The upstream may have answered early and never read the rest. hyper holds the body while it
/// waits for the upstream, and does not read from the client while the body exists, so the client
/// would continue to send and never read the response.
#[derive(Debug)]
pub(crate) struct Release(Arc<Mutex<Repeatable>>);

impl RepeatableBody {
    /// With `may_repeat`, this buffers the start of the body, for [`Release::again`].
    pub(crate) fn new(body: RequestBody, may_repeat: bool) -> (Self, Release) {
        let sent = may_repeat.then(VecDeque::new);
        let request = Repeatable { body: Some(body), sent, ..Repeatable::default() };
        let request = Arc::new(Mutex::new(request));
        (Self(Arc::clone(&request)), Release(request))
    }
}

impl Release {
    /// Returns the entire body for a repetition, and the number of repeated bytes, or `None` if the
    /// buffer was too small. From now on, the first [`RepeatableBody`] fails.
    pub(crate) fn again(&mut self) -> Option<(RepeatableBody, usize)> {
        let mut request = self.0.lock();
        let again = request.sent.take()?;
        let (body, reader) = (request.body.take(), request.reader.take());
        let size = |pieces: &VecDeque<Bytes>| pieces.iter().map(Bytes::len).sum::<usize>();
        // An earlier repetition may have failed before it had sent all pieces.
        let bytes = size(&again) - size(&request.again);
        drop(request);
        let sent = Some(again.clone());
        let request = Arc::new(Mutex::new(Repeatable { body, again, sent, reader: None }));
        self.0 = Arc::clone(&request);
        if let Some(reader) = reader {
            reader.wake();
        }
        Some((RepeatableBody(request), bytes))
    }

    /// Drops the buffer, because the upstream has responded.
    pub(crate) fn answered(&self) {
        self.0.lock().sent = None;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Repeatable { body, reader, .. } = mem::take(&mut *self.0.lock());
        drop(body);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Repeatable {
    /// Buffers a piece, or drops the buffer if it would be too large.
    fn remember(&mut self, frame: &Frame<Bytes>) {
        let Some(sent) = &mut self.sent else { return };
        let bytes: usize = sent.iter().map(Bytes::len).sum();
        match frame.data_ref() {
            Some(data) if bytes + data.len() <= MOST_SENT && sent.len() < MOST_PIECES => {
                sent.push_back(data.clone());
            }
            _ => self.sent = None,
        }
    }
}

impl Body for RepeatableBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let request = &mut *self.0.lock();
        let Some(body) = &mut request.body else {
            return Poll::Ready(Some(Err(BodyError::Unwanted)));
        };
        if let Some(piece) = request.again.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let polled = Pin::new(body).poll_frame(cx);
        match &polled {
            Poll::Pending => request.reader = Some(cx.waker().clone()),
            Poll::Ready(Some(Ok(frame))) => request.remember(frame),
            Poll::Ready(Some(Err(_))) => request.sent = None,
            Poll::Ready(None) => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let request = self.0.lock();
        request.again.is_empty() && request.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let request = self.0.lock();
        let rest = request.body.as_ref().map_or_else(SizeHint::default, Body::size_hint);
        let again = request.again.iter().map(|piece| piece.len() as u64).sum::<u64>();
        size_with(again, &rest)
    }
}

/// Most gRPC messages are smaller.
const MOST_SENT: usize = 64 << 10;

/// Limited as well, because each piece may retain a larger buffer.
const MOST_PIECES: usize = 16;
