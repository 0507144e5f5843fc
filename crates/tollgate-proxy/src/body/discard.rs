//! Discards the rest of a request body after an early response.
//!
//! Many clients send everything before they read, and lose the response if their connection closes
//! or their stream is reset before that. So the gateway reads and discards the rest for a while.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::whole::Whole;

/// How long a client that should read its response may send no bytes.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// How long a client may continue to send.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);

/// How much a client may still send.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// Discards the rest of an HTTP/2 body. The stream is reset when this returns.
pub(super) async fn discard(mut body: Whole) {
    let until = Instant::now() + LONGEST;
    let mut left = MOST_BYTES;
    while left > 0 {
        let quiet = until.min(Instant::now() + QUIET);
        let Ok(Some(Ok(frame))) = timeout_at(quiet, body.frame()).await else { return };
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
    }
}
