//! The progress of a request's body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::edits::Edits;
use bytes::Bytes;
use http::HeaderName;
use http_body::Frame;
use tokio::time::Instant;

use super::error::BodyError;
use super::timed::BodySender;
use crate::head::fields::MOST_FIELDS;
use crate::head::forwarded;

/// The progress of a request body, for the task that waits for the response.
#[derive(Debug)]
pub(crate) struct Upload {
    began: Instant,
    moved_at: AtomicU64,
    waits: AtomicBool,
    received: Received,
    left: AtomicU64,
    /// The header in which trusted proxies write the client's address.
    proxy_header: HeaderName,
    /// The configured header changes, which trailers must not undo.
    edits: Option<Arc<Edits>>,
}

/// Whether the request body is complete. Clones share this.
#[derive(Clone, Debug, Default)]
pub struct Received(Arc<AtomicBool>);

impl Received {
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn complete(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Upload {
    pub(crate) fn new(
        received: Received,
        most: u64,
        proxy_header: HeaderName,
        edits: Option<Arc<Edits>>,
    ) -> Arc<Self> {
        let (moved_at, waits) = (AtomicU64::new(0), AtomicBool::new(false));
        let (began, left) = (Instant::now(), AtomicU64::new(most));
        Arc::new(Self { began, moved_at, waits, received, left, proxy_header, edits })
    }

    pub(crate) fn received(&self) -> Received {
        self.received.clone()
    }

    /// Compensates for bytes that are repeated.
    pub(crate) fn rewind(&self, bytes: usize) {
        self.left.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Subtracts a piece from the remaining allowed bytes. False if the body is too large.
    fn takes(&self, data: &Bytes) -> bool {
        // Only one task reads the body.
        let left = self.left.load(Ordering::Relaxed).checked_sub(data.len() as u64);
        left.inspect(|left| self.left.store(*left, Ordering::Relaxed)).is_some()
    }

    /// When the wait for the response started: when the last piece arrived, or now if the client
    /// still has to send a piece.
    pub(crate) fn complete_since(&self) -> Instant {
        if self.waits.load(Ordering::Relaxed) {
            return Instant::now();
        }
        self.began + Duration::from_millis(self.moved_at.load(Ordering::Relaxed))
    }

    fn moved(&self) {
        // Milliseconds in a `u64` last for 500 million years.
        let passed = self.began.elapsed().as_millis() as u64;
        self.moved_at.store(passed, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }
}

impl BodySender for Arc<Upload> {
    fn clean(&self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if frame.data_ref().is_some_and(|data| !self.takes(data)) {
            return Err(BodyError::TooLarge);
        }
        self.moved();
        if let Some(trailers) = frame.trailers_mut() {
            forwarded::clean_trailers(trailers, &self.proxy_header);
            if let Some(edits) = &self.edits {
                edits.clear(trailers);
            }
            if trailers.len() > MOST_FIELDS {
                return Err(BodyError::Trailers);
            }
        }
        Ok(frame)
    }

    fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    fn finish(&mut self) {
        self.received.complete();
    }
}
