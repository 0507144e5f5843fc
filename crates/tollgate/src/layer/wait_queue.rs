//! The wait queue of a layer: its bounds, and how requests enter and leave it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Version;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use parking_lot::Mutex;

use super::lanes::{Arrival, Lanes, Member};
use crate::RequestHead;

/// The wait queue for limits with [`OnExceeded::Wait`](crate::OnExceeded), and its bounds.
///
/// **Clones are one queue**: they share the waiting requests and the bounds. A bound that is set
/// on a clone holds for all of them from then on; requests that wait already keep waiting.
/// Layers that are built with one `WaitQueue` wait in one order, see
/// [`OnExceeded::Wait`](crate::OnExceeded).
///
/// # Memory
///
/// Up to 1024 requests and 64 MiB by default. A request that finds the queue full is rejected.
/// Each waiting request counts with its header fields, 1 KiB for the rest of its state, and
/// the part of its body that the server may hold: the `Content-Length`, or the whole
/// [`body_window`](Self::body_window) of 1 MiB if a body of unknown length may follow.
#[derive(Clone)]
pub struct WaitQueue {
    shared: Arc<Shared>,
}

struct Shared {
    bounds: Bounds,
    queue: Mutex<Queue>,
}

/// Atomic, because each request reads the body window.
#[derive(Debug)]
struct Bounds {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    body_window: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    /// How many requests have arrived.
    arrivals: Arrival,
    waiting: usize,
    bytes: usize,
    lanes: Lanes,
}

/// The place of a request in the wait queue. The request leaves the queue when this is dropped.
pub(super) struct Ticket {
    shared: Arc<Shared>,
    bytes: usize,
    member: Member,
}

impl WaitQueue {
    /// An empty queue with the default bounds.
    pub fn new() -> Self {
        let bounds = Bounds {
            requests: AtomicUsize::new(1_024),
            bytes: AtomicUsize::new(64 << 20),
            body_window: AtomicUsize::new(1 << 20),
        };
        Self { shared: Arc::new(Shared { bounds, queue: Mutex::default() }) }
    }

    /// Up to `requests` may wait at once.
    #[must_use]
    pub fn max_requests(self, requests: usize) -> Self {
        self.shared.bounds.requests.store(requests, Ordering::Relaxed);
        self
    }

    /// The waiting requests may hold up to `bytes` together.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.shared.bounds.bytes.store(bytes, Ordering::Relaxed);
        self
    }

    /// The most bytes of a body that the server holds before the service reads it: the buffer of
    /// a connection, the window of a stream. Use `usize::MAX` where whole bodies are read before
    /// the limiter.
    #[must_use]
    pub fn body_window(self, bytes: usize) -> Self {
        self.shared.bounds.body_window.store(bytes, Ordering::Relaxed);
        self
    }

    /// The bytes that a request holds while it waits.
    pub(super) fn bytes_of(&self, head: &RequestHead<'_>) -> usize {
        let body_window = self.shared.bounds.body_window.load(Ordering::Relaxed);
        let headers = head.headers;
        let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let stated = |value: &HeaderValue| value.to_str().ok()?.parse::<usize>().ok();
        let body = match headers.get(CONTENT_LENGTH) {
            Some(length) => stated(length).unwrap_or(usize::MAX).min(body_window),
            // A request over HTTP/1 then has no body. Later versions can send a body all the same.
            None if head.version <= Version::HTTP_11
                && !headers.contains_key(TRANSFER_ENCODING) =>
            {
                0
            }
            None => body_window,
        };
        fields.fold(REST.saturating_add(body), usize::saturating_add)
    }

    /// Gives a request its number in the order of arrival. Returns as well whether other requests
    /// wait.
    #[inline]
    pub(super) fn arrive(&self) -> (Arrival, bool) {
        let mut queue = self.shared.queue.lock();
        queue.arrivals += 1;
        (queue.arrivals, !queue.lanes.is_empty())
    }

    /// Enters the lanes of the keys that the request waits for: the `denying` keys, and each key
    /// that an earlier request waits for. `None` if it waits for no key. If the queue is full, the
    /// error is the keys that it would wait for.
    pub(super) fn enter(
        &self,
        bytes: usize,
        mut member: Member,
        denying: u64,
    ) -> Result<Option<Ticket>, u64> {
        let Shared { bounds, queue, .. } = &*self.shared;
        let mut queue = queue.lock();
        let waits_for = denying | queue.lanes.behind(&member);
        if waits_for == 0 {
            return Ok(None);
        }
        let held = queue.bytes.saturating_add(bytes);
        if queue.waiting >= bounds.requests.load(Ordering::Relaxed)
            || held > bounds.bytes.load(Ordering::Relaxed)
        {
            return Err(waits_for);
        }
        queue.waiting += 1;
        queue.bytes = held;
        queue.lanes.place(&mut member, denying);
        drop(queue);
        Ok(Some(Ticket { shared: Arc::clone(&self.shared), bytes, member }))
    }
}

/// For the target, the futures and the connection of a request: some round number.
const REST: usize = 1024;

impl Ticket {
    /// Whether the request still waits, if these keys deny it. Moves it to the lanes of the keys
    /// that it waits for.
    pub(super) fn waits(&mut self, denying: u64) -> bool {
        self.shared.queue.lock().lanes.place(&mut self.member, denying)
    }

    /// The units that earlier requests wait for under a key of this request.
    pub(super) fn units_ahead(&self, number: usize) -> u64 {
        self.shared.queue.lock().lanes.units_ahead(&self.member, number)
    }

    /// The keys that the request waits for.
    pub(super) fn waits_for(&self) -> u64 {
        self.member.joined
    }

    /// Completes when the request has become the first of a lane.
    pub(super) async fn woken(&self) {
        self.member.first.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.waiting -= 1;
        queue.bytes -= self.bytes;
        queue.lanes.leave(&self.member, self.member.joined);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { bounds, queue, .. } = &*self.shared;
        let queue = queue.lock();
        let (waiting, lanes) = (queue.waiting, queue.lanes.len());
        drop(queue);
        f.debug_struct("WaitQueue")
            .field("bounds", bounds)
            .field("waiting", &waiting)
            .field("lanes", &lanes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Policy, Quota};

    use super::super::lanes::LaneKey;
    use super::*;

    type Entry = Result<Option<Ticket>, u64>;

    /// A request for one key arrives, and is denied.
    fn deny(queue: &WaitQueue, name: &str, bytes: usize) -> Entry {
        enter(queue, name, bytes, 0b1)
    }

    /// A request for one key arrives, and has not asked the store yet.
    fn arrive(queue: &WaitQueue, name: &str) -> Entry {
        enter(queue, name, 1, 0)
    }

    fn enter(queue: &WaitQueue, name: &str, bytes: usize, denying: u64) -> Entry {
        let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
        let keys = [LaneKey { policy, key: Key::from(name) }].into();
        let (arrival, costs, first) = (queue.arrive().0, [1].into(), Arc::default());
        let member = Member { arrival, keys, costs, may_wait: 0b1, joined: 0, first };
        queue.enter(bytes, member, denying)
    }

    fn waiting(entry: Entry) -> Ticket {
        entry.ok().flatten().expect("the request waits")
    }

    #[test]
    fn a_lane_lasts_as_long_as_a_request_waits_in_it() {
        let queue = WaitQueue::new().max_requests(2);
        let is_free = |name| matches!(arrive(&queue, name), Ok(None));
        assert!(is_free("a"));
        let first = waiting(deny(&queue, "a", 1));
        assert!(is_free("b"));
        let second = waiting(arrive(&queue.clone(), "a"));
        assert!(matches!(arrive(&queue, "a"), Err(0b1)));
        assert!(matches!(deny(&queue, "b", 1), Err(0b1)), "the queue is full for all");
        drop(first);
        assert!(!is_free("a"));
        drop(second);
        assert!(is_free("a"));
        let queue = queue.shared.queue.lock();
        assert!(queue.lanes.is_empty() && queue.bytes == 0 && queue.waiting == 0);
    }

    #[test]
    fn a_bound_holds_for_all_clones_whichever_it_is_set_on() {
        let queue = WaitQueue::new();
        let clone = queue.clone().max_requests(1).max_bytes(10).body_window(5);
        let first = waiting(deny(&queue, "a", 10));
        for queue in [&queue, &clone] {
            assert!(deny(queue, "b", 0).is_err(), "one request");
        }
        drop(first);
        for queue in [&queue, &clone] {
            assert!(deny(queue, "a", 11).is_err(), "ten bytes");
            assert_eq!(queue.shared.bounds.body_window.load(Ordering::Relaxed), 5);
        }
        let wider = clone.max_requests(2).max_bytes(100);
        let _first = waiting(deny(&queue, "a", 11));
        let _second = waiting(deny(&wider, "b", 11));
    }

    #[test]
    fn a_request_counts_with_as_much_of_its_body_as_may_be_there() {
        let queue = WaitQueue::new().body_window(10_000);
        let bytes = |version, fields: &[(&'static str, &str)]| {
            let mut request = http::Request::new(());
            *request.version_mut() = version;
            for (name, value) in fields {
                request.headers_mut().insert(*name, value.parse().unwrap());
            }
            queue.bytes_of(&RequestHead::of(&request)) - REST
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

    #[test]
    fn no_more_bytes_are_held_than_there_is_room_for() {
        let queue = WaitQueue::new().max_bytes(10);
        let first = waiting(deny(&queue, "a", 6));
        assert!(deny(&queue, "b", 5).is_err());
        let second = waiting(deny(&queue, "b", 4));
        assert!(arrive(&queue, "a").is_err());
        drop((first, second));
        assert!(deny(&queue, "a", 11).is_err());
        waiting(deny(&queue, "a", 10));
    }
}
