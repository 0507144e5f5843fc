//! The wait queue of layers and limiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Version;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use tollgate_engine::{Arrival, Queue};

use crate::RequestHead;

/// The wait queue for limits with [`Mode::Wait`](crate::limit::Mode), and its bounds.
///
/// **Clones share the same queue** and bounds. A new bound applies to later requests. Layers with
/// the same `WaitQueue` serve their requests in a common order, see
/// [`Mode::Wait`](crate::limit::Mode).
///
/// # Memory
///
/// By default up to 1024 requests and 64 MiB. A full queue rejects requests. The size of a waiting
/// request includes its headers, 1 KiB for its state, and its `Content-Length`. A body with unknown
/// length, or longer than [`body_window`](Self::body_window) (1 MiB), counts as `body_window`.
///
/// Requests with the same key, for example from one client, may use up to half of
/// `max_requests` and `max_bytes`, but at least one request. Requests under
/// [`Limit::global`](crate::Limit::global) may use the entire queue.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::layer::WaitQueue;
/// use tollgate::limit::Mode;
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let queue = WaitQueue::new().max_requests(200).max_bytes(16 << 20);
/// let policy = Policy::token_bucket("upload", Quota::per_second(2))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .wait_queue(&queue)
///     .limit(Limit::global(policy).mode(Mode::Wait(Duration::from_secs(5))))
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct WaitQueue {
    queue: Queue,
    body_window: Arc<AtomicUsize>,
}

impl WaitQueue {
    /// Creates a wait queue with the default bounds.
    pub fn new() -> Self {
        Self { queue: Queue::new(), body_window: Arc::new(AtomicUsize::new(1 << 20)) }
    }

    /// Sets how many requests can wait at the same time.
    pub fn max_requests(self, requests: usize) -> Self {
        self.queue.set_max_requests(requests);
        self
    }

    /// Sets the total number of bytes that waiting requests can hold.
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.queue.set_max_bytes(bytes);
        self
    }

    /// Sets how many bytes of a body the server buffers before the service reads it: the
    /// connection's buffer or the stream's window. Use `usize::MAX` if the server first reads the
    /// entire body.
    pub fn body_window(self, bytes: usize) -> Self {
        self.body_window.store(bytes, Ordering::Relaxed);
        self
    }

    fn bytes_of(&self, head: &RequestHead<'_>) -> usize {
        let body_window = self.body_window.load(Ordering::Relaxed);
        let headers = head.headers;
        let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let stated = |value: &HeaderValue| value.to_str().ok()?.parse::<usize>().ok();
        let body = match headers.get(CONTENT_LENGTH) {
            Some(length) => stated(length).unwrap_or(usize::MAX).min(body_window),
            // Without these headers, an HTTP/1 request has no body. Later versions can still send a
            // body.
            None if head.version <= Version::HTTP_11
                && !headers.contains_key(TRANSFER_ENCODING) =>
            {
                0
            }
            None => body_window,
        };
        fields.fold(BASE_BYTES.saturating_add(body), usize::saturating_add)
    }

    #[inline]
    pub(super) fn arrive(&self, head: &RequestHead<'_>) -> Arrival {
        self.queue.arrive(self.bytes_of(head))
    }

    /// For a call without HTTP.
    pub(crate) fn arrive_alone(&self) -> Arrival {
        self.queue.arrive(BASE_BYTES)
    }
}

/// An estimate for a request's target, futures and connection.
const BASE_BYTES: usize = 1024;

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

debug_fields!(WaitQueue, queue);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_bytes_are_capped_at_window() {
        let queue = WaitQueue::new().body_window(10_000);
        let bytes = |version, fields: &[(&'static str, &str)]| {
            let mut request = http::Request::new(());
            *request.version_mut() = version;
            for (name, value) in fields {
                request.headers_mut().insert(*name, value.parse().unwrap());
            }
            queue.bytes_of(&RequestHead::of(&request)) - BASE_BYTES
        };
        for (fields, in_http1, in_http2) in [
            (&[][..], 0, 10_000),
            (&[("content-length", "7")], 14 + 1 + 7, 14 + 1 + 7),
            (&[("content-length", "1000000")], 14 + 7 + 10_000, 14 + 7 + 10_000),
            (&[("content-length", "x")], 14 + 1 + 10_000, 14 + 1 + 10_000),
            (&[("transfer-encoding", "chunked")], 17 + 7 + 10_000, 17 + 7 + 10_000),
            (&[("cookie", "abc"), ("content-length", "0")], 6 + 3 + 15, 6 + 3 + 15),
        ] {
            assert_eq!(bytes(Version::HTTP_11, fields), in_http1, "{fields:?}");
            assert_eq!(bytes(Version::HTTP_2, fields), in_http2, "{fields:?}");
        }
    }
}
