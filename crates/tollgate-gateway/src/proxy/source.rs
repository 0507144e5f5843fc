use std::collections::VecDeque;
use std::mem;
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

#[derive(Debug, Default)]
pub(super) struct Held {
    body: Option<Incoming>,
    reader: Option<Waker>,
    /// All pieces so far, while the gateway may have to repeat the request.
    sent: Option<VecDeque<Bytes>>,
    /// Pieces to repeat, before the rest of the body.
    again: VecDeque<Bytes>,
}

/// Drops the body of a request when the response to the request ends.
///
/// The upstream may have answered early and never read the rest. hyper keeps the body as long as it
/// waits for the upstream, and reads nothing from the client as long as the body exists: the client
/// would go on sending and never read the response.
#[derive(Debug)]
pub(super) struct Release(Arc<Mutex<Held>>);

impl Source {
    /// With `may_repeat`, this buffers the start of the body, for [`Release::again`].
    pub(super) fn request(body: Incoming, may_repeat: bool) -> (Self, Release) {
        let sent = may_repeat.then(VecDeque::new);
        let held = Held { body: Some(body), sent, ..Held::default() };
        let held = Arc::new(Mutex::new(held));
        (Self::Request(Arc::clone(&held)), Release(held))
    }
}

impl Release {
    /// Returns the entire body for a repetition, and the number of repeated bytes. The first
    /// [`Source`] fails from now on. `None` if the buffer was too small.
    pub(super) fn again(&mut self) -> Option<(Source, usize)> {
        let mut held = self.0.lock();
        let again = held.sent.take()?;
        let (body, reader) = (held.body.take(), held.reader.take());
        let size = |pieces: &VecDeque<Bytes>| pieces.iter().map(Bytes::len).sum::<usize>();
        // An earlier repetition may have ended before it had sent all pieces.
        let bytes = size(&again) - size(&held.again);
        drop(held);
        let sent = Some(again.clone());
        let held = Arc::new(Mutex::new(Held { body, again, sent, ..Held::default() }));
        self.0 = Arc::clone(&held);
        if let Some(reader) = reader {
            reader.wake();
        }
        Some((Source::Request(held), bytes))
    }

    /// Drops the buffer, because the upstream has responded.
    pub(super) fn answered(&self) {
        self.0.lock().sent = None;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Held { body, reader, .. } = mem::take(&mut *self.0.lock());
        drop(body);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Held {
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
                let held = &mut *held.lock();
                let Some(body) = &mut held.body else {
                    return Poll::Ready(Some(Err(BodyError::Unwanted)));
                };
                if let Some(piece) = held.again.pop_front() {
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                let polled = Pin::new(body).poll_frame(cx);
                match &polled {
                    Poll::Pending => held.reader = Some(cx.waker().clone()),
                    Poll::Ready(Some(Ok(frame))) => held.remember(frame),
                    Poll::Ready(Some(Err(_))) => held.sent = None,
                    Poll::Ready(None) => {}
                }
                polled
            }
        };
        polled.map_err(BodyError::Broken)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Response(body) => body.is_end_stream(),
            Self::Request(held) => {
                let held = held.lock();
                held.again.is_empty() && held.body.as_ref().is_some_and(Body::is_end_stream)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Response(body) => body.size_hint(),
            Self::Request(held) => {
                let held = held.lock();
                let rest = held.body.as_ref().map_or_else(SizeHint::default, Body::size_hint);
                let again = held.again.iter().map(|piece| piece.len() as u64).sum::<u64>();
                let mut whole = SizeHint::new();
                whole.set_lower(rest.lower() + again);
                if let Some(upper) = rest.upper() {
                    whole.set_upper(upper + again);
                }
                whole
            }
        }
    }
}

/// Most gRPC messages are smaller.
const MOST_SENT: usize = 64 << 10;

/// Bounded as well, because each piece may retain a larger buffer.
const MOST_PIECES: usize = 16;
