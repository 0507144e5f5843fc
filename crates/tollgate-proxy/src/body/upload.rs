//! The progress of a request's body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::edits::Edits;
use bytes::Bytes;
use http::HeaderName;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::BodyError;
use super::timed::BodySender;
use crate::head::fields::MOST_FIELDS;
use crate::head::forwarded;

/// The progress of a request body, for the task that waits for the response.
#[derive(Debug)]
pub(crate) struct Upload {
    progress: Mutex<Progress>,
    received: Received,
    /// The header in which trusted proxies write the client's address.
    proxy_header: HeaderName,
    /// The configured header changes, which trailers must not undo.
    edits: Option<Arc<Edits>>,
}

#[derive(Debug)]
struct Progress {
    moved_at: Instant,
    /// Whether the client still has to send a piece.
    waits: bool,
    /// The remaining allowed bytes.
    left: u64,
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
        let progress = Progress { moved_at: Instant::now(), waits: false, left: most };
        Arc::new(Self { progress: Mutex::new(progress), received, proxy_header, edits })
    }

    pub(crate) fn received(&self) -> Received {
        self.received.clone()
    }

    /// Compensates for bytes that are repeated.
    pub(crate) fn rewind(&self, bytes: usize) {
        self.progress.lock().left += bytes as u64;
    }

    /// When the wait for the response started: when the last piece arrived, or now if the client
    /// still has to send a piece.
    pub(crate) fn complete_since(&self) -> Instant {
        let progress = self.progress.lock();
        if progress.waits { Instant::now() } else { progress.moved_at }
    }
}

impl BodySender for Arc<Upload> {
    fn clean(&self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let mut progress = self.progress.lock();
        progress.left = progress.left.checked_sub(bytes).ok_or(BodyError::TooLarge)?;
        (progress.moved_at, progress.waits) = (Instant::now(), false);
        drop(progress);
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
        self.progress.lock().waits = true;
    }

    fn finish(&mut self) {
        self.received.complete();
    }
}
