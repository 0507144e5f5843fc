//! The upstream as the sender of a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;

use super::checkout::Checkout;
use super::failures::Health;
use crate::proxy::body::error::BodyError;
use crate::proxy::body::timed::{BodySender, Timed};
use crate::proxy::head::hop;

/// A response's sender. Its connection is free for other requests when the body is complete.
#[derive(Debug)]
pub struct Responder {
    health: Arc<Health>,
    checkout: Option<Checkout>,
}

impl<B: http_body::Body> Timed<B, Responder> {
    /// A response body. If it is incomplete, `health` records the failure.
    pub(super) fn response(
        body: B,
        idle: Duration,
        health: Arc<Health>,
        mut checkout: Option<Checkout>,
    ) -> Self {
        if body.is_end_stream()
            && let Some(checkout) = checkout.take()
        {
            checkout.release();
        }
        Self::new(body, idle, Responder { health, checkout })
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
