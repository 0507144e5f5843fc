//! The upstream as the sender of a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};

use super::checkout::Checkout;
use super::failures::Health;
use crate::body::error::BodyError;
use crate::body::source::Release;
use crate::body::timed::{BodySender, Timed};
use crate::body::whole::Whole;
use crate::head::hop;

/// A response's sender. Its connection is free for other requests when the body is complete.
#[derive(Debug)]
pub struct Responder {
    health: Arc<Health>,
    checkout: Option<Checkout>,
    /// Drops the request's body when the response is complete.
    request: Option<Release>,
}

/// An upstream's response body. It is forwarded piece by piece, at the slower side's speed.
pub type ResponseBody = Timed<Whole, Responder>;

impl ResponseBody {
    /// If the body is incomplete, `health` records the failure.
    pub(super) fn response(
        body: Whole,
        idle: Duration,
        health: Arc<Health>,
        checkout: Option<Checkout>,
        request: Option<Release>,
    ) -> Self {
        let mut responder = Responder { health, checkout, request };
        if body.is_end_stream() {
            responder.finish();
        }
        Self::new(body, idle, responder)
    }
}

impl BodySender for Responder {
    fn clean(&self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if let Some(trailers) = frame.trailers_mut() {
            hop::remove_framing(trailers);
        }
        Ok(frame)
    }

    /// Waits until the client's next request would find the connection in the pool.
    fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.checkout.as_mut().map_or(Poll::Ready(()), |checkout| checkout.poll_settled(cx))
    }

    fn finish(&mut self) {
        self.request = None;
        if let Some(checkout) = self.checkout.take() {
            checkout.release();
        }
    }

    fn broke_off(&mut self, error: &BodyError) -> bool {
        if let (BodyError::Idle(_), Some(checkout)) = (error, &self.checkout) {
            checkout.retire();
        }
        let what = "the upstream did not complete its response";
        self.health.failed("response-broke-off", &what, Some(error));
        true
    }
}
