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
use super::lease::Lease;
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
        Self { body, pause: None, is_silent: false, idle, sender, broken: None }
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
        if this.broken.is_none() {
            let error = match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => error.into(),
                Poll::Ready(frame) => {
                    *this.is_silent = false;
                    if frame.is_none() || this.body.is_end_stream() {
                        this.sender.ended();
                    }
                    return Poll::Ready(frame.map(|frame| this.sender.clean(frame?)));
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
            let Sender::Upstream(health, _) = this.sender else {
                return Poll::Ready(Some(Err(error)));
            };
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
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
