//! Bodies with a limit on the pauses of their sender.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};

use super::entrance::MOST_FIELDS;
use super::failures::Health;
use super::lease::{Lease, SETTLED};
use super::upload::Upload;
use super::{forwarded, hop};

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
        // The last piece, or the end. It is held back until the upstream connection is ready for
        // the client's next request.
        last: Option<Box<Option<Frame<Bytes>>>>,
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
        Self { body, pause: None, is_silent: false, idle, sender, broken: None, last: None }
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
        if let Some(last) = this.last.take() {
            let is_late = this.pause.as_mut().is_some_and(|held| held.as_mut().poll(cx).is_ready());
            if !is_late && this.sender.poll_ended(cx).is_pending() {
                *this.last = Some(last);
                return Poll::Pending;
            }
            this.sender.ended();
            return Poll::Ready(last.map(Ok));
        }
        if this.broken.is_none() {
            let error = match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => error.into(),
                Poll::Ready(frame) => {
                    *this.is_silent = false;
                    let is_last = frame.is_none() || this.body.is_end_stream();
                    let is_held = is_last && this.sender.poll_ended(cx).is_pending();
                    if is_last && !is_held {
                        this.sender.ended();
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
            let Sender::Upstream(health, lease) = this.sender else {
                return Poll::Ready(Some(Err(error)));
            };
            if let (BodyError::Idle(_), Some(lease)) = (&error, lease) {
                lease.retire();
            }
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

    /// Waits until the client may read the end.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Upstream(_, Some(lease)) => lease.poll_settled(cx),
            _ => Poll::Ready(()),
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

#[cfg(test)]
mod tests;
