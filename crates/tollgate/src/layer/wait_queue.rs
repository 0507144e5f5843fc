//! A layer's wait queue: its bounds, and how requests enter and leave it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::Version;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
#[cfg(not(test))]
use parking_lot::Mutex;
#[cfg(test)]
use tollgate_interleavings::Mutex;

use super::lanes::{ArrivalNumber, KeySet, LaneKey, Lanes, Member};
use crate::RequestHead;

/// The wait queue for limits with [`OnExceeded::Wait`](crate::limit::OnExceeded), and its bounds.
///
/// **Clones share the same queue** and bounds. A new bound applies to later requests. Layers with
/// the same `WaitQueue` serve their requests in a common order, see
/// [`OnExceeded::Wait`](crate::limit::OnExceeded).
///
/// # Memory
///
/// By default up to 1024 requests and 64 MiB. A full queue rejects requests. The size of a waiting
/// request includes its headers, 1 KiB for its state, and its `Content-Length`. A body with unknown
/// length, or longer than [`body_window`](Self::body_window) (1 MiB), counts as `body_window`.
///
/// Requests with the same key, for example from one client, may use up to half of the queue's
/// places and bytes, but at least one place. Requests under
/// [`Limit::global`](crate::Limit::global) may use the entire queue.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::layer::WaitQueue;
/// use tollgate::limit::OnExceeded;
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let queue = WaitQueue::new().max_requests(200).max_bytes(16 << 20);
/// let policy = Policy::token_bucket("upload", Quota::per_second(2))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .wait_queue(&queue)
///     .limit(Limit::global(policy).on_exceeded(OnExceeded::Wait { max: Duration::from_secs(5) }))
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct WaitQueue {
    shared: Arc<BoundedQueue>,
}

struct BoundedQueue {
    max_requests: AtomicUsize,
    max_bytes: AtomicUsize,
    body_window: AtomicUsize,
    arrivals: AtomicU64,
    /// The number of lanes in the queue. A request takes the lock only if another request waits.
    lanes: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: QueueUsage,
    /// How much of the queue each non-global key holds.
    by_key: HashMap<LaneKey, QueueUsage>,
    lanes: Lanes,
}

/// How many places and bytes waiting requests hold.
#[derive(Clone, Copy, Debug, Default)]
struct QueueUsage {
    requests: usize,
    bytes: usize,
}

impl QueueUsage {
    /// Adds a request, unless that would exceed a bound.
    fn with(self, bytes: usize, most: Self) -> Option<Self> {
        let held = Self { requests: self.requests + 1, bytes: self.bytes.checked_add(bytes)? };
        (held.requests <= most.requests && held.bytes <= most.bytes).then_some(held)
    }

    const fn without(self, bytes: usize) -> Self {
        Self { requests: self.requests - 1, bytes: self.bytes - bytes }
    }
}

/// A request that may have to wait.
pub(super) struct Arrival {
    pub(super) number: ArrivalNumber,
    /// The number of bytes that the request holds while it waits.
    pub(super) bytes: usize,
    pub(super) others_wait: bool,
}

/// A request's position in the wait queue. When this is dropped, the request leaves the queue.
pub(super) struct Ticket {
    shared: Arc<BoundedQueue>,
    bytes: usize,
    member: Member,
}

impl WaitQueue {
    /// Creates a wait queue with the default bounds.
    pub fn new() -> Self {
        let shared = BoundedQueue {
            max_requests: AtomicUsize::new(1_024),
            max_bytes: AtomicUsize::new(64 << 20),
            body_window: AtomicUsize::new(1 << 20),
            arrivals: AtomicU64::new(0),
            lanes: AtomicUsize::new(0),
            queue: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets how many requests can wait at the same time.
    #[must_use]
    pub fn max_requests(self, requests: usize) -> Self {
        self.shared.max_requests.store(requests, Ordering::Relaxed);
        self
    }

    /// Sets the total number of bytes that waiting requests can hold.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.shared.max_bytes.store(bytes, Ordering::Relaxed);
        self
    }

    /// Sets how many bytes of a body the server buffers before the service reads it: the
    /// connection's buffer or the stream's window. Use `usize::MAX` if the server first reads the
    /// entire body.
    #[must_use]
    pub fn body_window(self, bytes: usize) -> Self {
        self.shared.body_window.store(bytes, Ordering::Relaxed);
        self
    }

    fn bytes_of(&self, head: &RequestHead<'_>) -> usize {
        let body_window = self.shared.body_window.load(Ordering::Relaxed);
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
        let number = self.shared.arrivals.fetch_add(1, Ordering::Relaxed);
        let others_wait = self.shared.lanes.load(Ordering::Acquire) > 0;
        Arrival { number, bytes: self.bytes_of(head), others_wait }
    }

    /// Enters the lanes of the keys that the request waits for; see [`Lanes::place`]. Returns
    /// `None` if it waits for no key.
    ///
    /// # Errors
    /// The queue is full, or a key has used its part. The value contains the keys that the request
    /// would have waited for.
    pub(super) fn enter(
        &self,
        bytes: usize,
        mut member: Member,
        denying: KeySet,
    ) -> Result<Option<Ticket>, KeySet> {
        let BoundedQueue { max_requests, max_bytes, queue, .. } = &*self.shared;
        let mut queue = queue.lock();
        let waits_for = denying.union(queue.lanes.behind(&member));
        if waits_for.is_empty() {
            return Ok(None);
        }
        let most = QueueUsage {
            requests: max_requests.load(Ordering::Relaxed),
            bytes: max_bytes.load(Ordering::Relaxed),
        };
        let waiting = queue.waiting.with(bytes, most).ok_or(waits_for)?;
        let part =
            QueueUsage { requests: most.requests.div_ceil(2), bytes: most.bytes.div_ceil(2) };
        let is_full = |key| queue.by_key.get(key).is_some_and(|it| it.with(bytes, part).is_none());
        // A client's own limit admits many concurrent requests while it has a unit left. If they
        // all wait for a shared limit, they must not take every place.
        if own_keys(&member).any(is_full) {
            return Err(waits_for);
        }
        queue.waiting = waiting;
        for key in own_keys(&member) {
            let held = queue.by_key.entry(key.clone()).or_default();
            *held = QueueUsage { requests: held.requests + 1, bytes: held.bytes + bytes };
        }
        queue.lanes.place(&mut member, denying);
        self.shared.publish(&queue);
        drop(queue);
        Ok(Some(Ticket { shared: Arc::clone(&self.shared), bytes, member }))
    }
}

impl BoundedQueue {
    /// Publishes the number of lanes for later requests. Called under the lock, after each change.
    fn publish(&self, queue: &Queue) {
        self.lanes.store(queue.lanes.len(), Ordering::Release);
    }
}

fn own_keys(member: &Member) -> impl Iterator<Item = &LaneKey> {
    member.own.iter().map(|number| &member.keys[number])
}

/// An estimate for a request's target, futures and connection.
const BASE_BYTES: usize = 1024;

impl Ticket {
    pub(super) fn waits(&mut self, denying: KeySet) -> bool {
        let mut queue = self.shared.queue.lock();
        let waits = queue.lanes.place(&mut self.member, denying);
        self.shared.publish(&queue);
        waits
    }

    pub(super) fn units_ahead(&self, number: usize) -> u64 {
        self.shared.queue.lock().lanes.units_ahead(&self.member, number)
    }

    pub(super) fn waits_for(&self) -> KeySet {
        self.member.joined
    }

    pub(super) async fn woken(&self) {
        self.member.is_first.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.waiting = queue.waiting.without(self.bytes);
        for key in own_keys(&self.member) {
            let Some(held) = queue.by_key.get_mut(key) else { continue };
            *held = held.without(self.bytes);
            if held.requests == 0 {
                queue.by_key.remove(key);
            }
        }
        queue.lanes.leave(&self.member, self.member.joined);
        self.shared.publish(&queue);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BoundedQueue { max_requests, max_bytes, queue, .. } = &*self.shared;
        let queue = queue.lock();
        let (waiting, lanes) = (queue.waiting.requests, queue.lanes.len());
        drop(queue);
        f.debug_struct("WaitQueue")
            .field("max_requests", max_requests)
            .field("max_bytes", max_bytes)
            .field("waiting", &waiting)
            .field("lanes", &lanes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
