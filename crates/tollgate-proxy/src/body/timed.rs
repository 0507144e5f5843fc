//! Limits the pauses between the pieces of a body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};

use super::error::BodyError;

pin_project! {
    /// A body that limits its sender's pauses.
    ///
    /// Only time in which the receiver waits for a piece counts. A slow receiver does not poll the
    /// body, so only a few pieces are in memory.
    #[derive(Debug)]
    pub struct Timed<B, S> {
        #[pin]
        body: B,
        // Boxed, because hyper's client requires bodies that are `Unpin`.
        pause: Option<Pin<Box<Sleep>>>,
        is_silent: bool,
        idle: Duration,
        sender: S,
        // The reason for an early end, which is reported after the earlier pieces are sent.
        broken: Option<BodyError>,
        // The last piece, or the end. Held back until the upstream connection is ready for the
        // client's next request.
        last: Option<Box<Option<Frame<Bytes>>>>,
    }
}

impl<B, S> Timed<B, S> {
    pub(crate) const fn new(body: B, idle: Duration, sender: S) -> Self {
        Self { body, pause: None, is_silent: false, idle, sender, broken: None, last: None }
    }
}

/// The side that sends a body: a client or an upstream.
pub(crate) trait BodySender {
    /// Checks a piece, and removes trailers that must not be forwarded.
    fn clean(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError>;

    /// Called while the receiver waits for a piece.
    fn waits(&self) {}

    /// Waits until the receiver may read the end.
    fn poll_settled(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn finish(&mut self);

    /// Returns whether to delay the error until the receiver has the earlier pieces.
    fn broke_off(&mut self, _: &BodyError) -> bool {
        false
    }
}

impl<B, S> http_body::Body for Timed<B, S>
where
    B: http_body::Body<Data = Bytes>,
    BodyError: From<B::Error>,
    S: BodySender,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut this = self.project();
        if let Some(last) = this.last.take() {
            let is_late = this.pause.as_mut().is_some_and(|held| held.as_mut().poll(cx).is_ready());
            if !is_late && this.sender.poll_settled(cx).is_pending() {
                *this.last = Some(last);
                return Poll::Pending;
            }
            this.sender.finish();
            return Poll::Ready(last.map(Ok));
        }
        if this.broken.is_none() {
            let error = match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => error.into(),
                Poll::Ready(frame) => {
                    *this.is_silent = false;
                    let is_last = frame.is_none() || this.body.is_end_stream();
                    let is_held = is_last && this.sender.poll_settled(cx).is_pending();
                    if is_last && !is_held {
                        this.sender.finish();
                    }
                    let frame = frame.map(|frame| this.sender.clean(frame?)).transpose()?;
                    if !is_held {
                        return Poll::Ready(frame.map(Ok));
                    }
                    let held = this.pause.get_or_insert_with(|| Box::pin(sleep(SETTLED)));
                    held.as_mut().reset(Instant::now() + SETTLED);
                    // Registers the waker.
                    let _ = held.as_mut().poll(cx);
                    *this.last = Some(Box::new(frame));
                    return Poll::Pending;
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
            if !this.sender.broke_off(&error) {
                return Poll::Ready(Some(Err(error)));
            }
            *this.broken = Some(error);
            // hyper drops unsent bytes when a body fails, perhaps including the head.
            let rest = this.pause.get_or_insert_with(|| Box::pin(sleep(REST)));
            rest.as_mut().reset(Instant::now() + REST);
        }
        if let Some(rest) = this.pause {
            ready!(rest.as_mut().poll(cx));
        }
        Poll::Ready(this.broken.take().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let last = self.last.as_ref().and_then(|last| last.as_ref().as_ref()?.data_ref());
        match last {
            Some(data) => SizeHint::with_exact(data.len() as u64),
            None => self.body.size_hint(),
        }
    }
}

/// How long a response may wait for its connection. Connections are ready within microseconds,
/// unless the upstream responded before it read the entire request.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// The pause before an incomplete body fails, in which hyper sends the received part.
const REST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
