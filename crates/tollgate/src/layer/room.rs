//! Where requests stand in line for the quotas that they share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::Version;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use parking_lot::Mutex;
use tokio::sync::Mutex as Turn;
use tollgate_core::{Key, Policy};

use crate::Head;

/// Where requests wait for limits with [`Excess::Wait`](crate::Excess), one line for all that
/// wait for the same quotas. **Clones are one room**, and so the layers that are given it
/// share its bounds and its lines.
///
/// # What bounds memory
/// So many requests, 1024, and so many bytes, 64 MiB. Who finds the room full is refused. A
/// request counts with its header fields, with 1 KiB for everything else of it, and with as
/// much of its body as the server may have taken in before anybody reads it: the length that
/// it states, at most 1 MiB ([`body_window`](Self::body_window)), and all of that where one of
/// unknown length may follow.
#[derive(Clone)]
pub struct WaitingRoom {
    lines: Arc<Mutex<Lines>>,
    bounds: Bounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    requests: usize,
    bytes: usize,
    body_window: usize,
}

/// What a line is for: policies, and whose quota of each.
pub(super) type LineKey = Box<[Awaited]>;

/// A quota that somebody waits for: its state belongs to the name of the policy.
#[derive(Clone)]
pub(super) struct Awaited(pub(super) Policy, pub(super) Key);

impl PartialEq for Awaited {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name() && self.1 == other.1
    }
}

impl Eq for Awaited {}

impl Hash for Awaited {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.name().hash(hasher);
        self.1.hash(hasher);
    }
}

#[derive(Default)]
struct Lines {
    waiting: usize,
    bytes: usize,
    /// None is empty.
    lines: HashMap<LineKey, Line>,
}

struct Line {
    /// Held by whoever stands in front: it is given on in the order in which it was asked
    /// for, and to nobody who has left.
    turn: Arc<Turn<()>>,
    waiting: usize,
}

/// A place in a line. Dropped, it is free for others.
pub(super) struct Place {
    lines: Arc<Mutex<Lines>>,
    key: LineKey,
    bytes: usize,
    pub(super) turn: Arc<Turn<()>>,
}

/// What somebody finds who comes.
pub(super) enum Arrival {
    /// Nobody waits for these quotas.
    Free,
    /// Others wait, and there is a place behind them.
    Behind(Place),
    /// Others wait, and there is no place left.
    Full,
}

impl WaitingRoom {
    /// An empty room with the usual bounds.
    pub fn new() -> Self {
        let bounds = Bounds { requests: 1_024, bytes: 64 << 20, body_window: 1 << 20 };
        Self { lines: Arc::default(), bounds }
    }

    /// So many requests may wait at once.
    #[must_use]
    pub const fn max_requests(mut self, requests: usize) -> Self {
        self.bounds.requests = requests;
        self
    }

    /// So many bytes of them may be held meanwhile.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.bounds.bytes = bytes;
        self
    }

    /// So much of a body the server takes in before anybody reads it: the buffer of a
    /// connection, the window of a stream. Where whole bodies are read before the limiter,
    /// that is all of it: `usize::MAX`.
    #[must_use]
    pub const fn body_window(mut self, bytes: usize) -> Self {
        self.bounds.body_window = bytes;
        self
    }

    /// What a request takes while it waits.
    pub(super) fn bytes_of(&self, head: &Head<'_>) -> usize {
        let headers = head.headers;
        let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let stated = |value: &HeaderValue| value.to_str().ok()?.parse::<usize>().ok();
        let body = match headers.get(CONTENT_LENGTH) {
            Some(length) => stated(length).unwrap_or(usize::MAX).min(self.bounds.body_window),
            // Over HTTP/1 there is none then. Later versions need not say that one follows.
            None if head.version <= Version::HTTP_11
                && !headers.contains_key(TRANSFER_ENCODING) =>
            {
                0
            }
            None => self.bounds.body_window,
        };
        fields.fold(REST.saturating_add(body), usize::saturating_add)
    }

    /// Joins the line, if there is one.
    pub(super) fn arrive(&self, key: LineKey, bytes: usize) -> Arrival {
        if !self.lines.lock().lines.contains_key(&key) {
            return Arrival::Free;
        }
        // If the line has gone meanwhile, this is the first of a new one: it waits for
        // nobody then.
        self.enter(key, bytes).map_or(Arrival::Full, Arrival::Behind)
    }

    /// Joins the line or begins it; `None` if the room is full.
    pub(super) fn enter(&self, key: LineKey, bytes: usize) -> Option<Place> {
        let mut all = self.lines.lock();
        let held = all.bytes.saturating_add(bytes);
        if all.waiting >= self.bounds.requests || held > self.bounds.bytes {
            return None;
        }
        all.waiting += 1;
        all.bytes = held;
        let new = || Line { turn: Arc::default(), waiting: 0 };
        let line = all.lines.entry(key.clone()).or_insert_with(new);
        line.waiting += 1;
        let turn = Arc::clone(&line.turn);
        drop(all);
        Some(Place { lines: Arc::clone(&self.lines), key, bytes, turn })
    }
}

/// For the target, the futures and the connection of a request: some round number.
const REST: usize = 1024;

impl Default for WaitingRoom {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitingRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.lines.lock().waiting;
        f.debug_struct("WaitingRoom")
            .field("bounds", &self.bounds)
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.lines.lock();
        all.waiting -= 1;
        all.bytes -= self.bytes;
        if let Entry::Occupied(mut line) = all.lines.entry(std::mem::take(&mut self.key)) {
            line.get_mut().waiting -= 1;
            if line.get().waiting == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LineKey {
        let policy = Policy::fixed_window_counter("p", tollgate_core::Quota::per_second(1));
        [Awaited(policy.unwrap(), Key::from(name))].into()
    }

    #[test]
    fn a_line_is_there_as_long_as_somebody_waits() {
        let room = WaitingRoom::new().max_requests(2);
        let is_free = |name| matches!(room.arrive(key(name), 1), Arrival::Free);
        assert!(is_free("a"));
        let first = room.enter(key("a"), 1).unwrap();
        assert!(!is_free("a"));
        assert!(is_free("b"));
        let Arrival::Behind(second) = room.clone().arrive(key("a"), 1) else {
            panic!("a place is left")
        };
        assert!(Arc::ptr_eq(&first.turn, &second.turn));
        assert!(matches!(room.arrive(key("a"), 1), Arrival::Full));
        assert!(room.enter(key("b"), 1).is_none(), "the room is full for all");
        drop(first);
        assert!(!is_free("a"));
        drop(second);
        assert!(is_free("a"));
        let lines = room.lines.lock();
        assert!(lines.lines.is_empty() && lines.bytes == 0);
    }

    #[test]
    fn a_request_counts_with_as_much_of_its_body_as_may_be_there() {
        let room = WaitingRoom::new().body_window(10_000);
        let bytes = |version, fields: &[(&'static str, &str)]| {
            let mut request = http::Request::new(());
            *request.version_mut() = version;
            for (name, value) in fields {
                request.headers_mut().insert(*name, value.parse().unwrap());
            }
            room.bytes_of(&Head::of(&request)) - REST
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
        let room = WaitingRoom::new().max_bytes(10);
        let first = room.enter(key("a"), 6).unwrap();
        assert!(room.enter(key("b"), 5).is_none());
        let second = room.enter(key("b"), 4).unwrap();
        assert!(matches!(room.arrive(key("a"), 1), Arrival::Full));
        drop((first, second));
        assert!(room.enter(key("a"), 11).is_none());
        assert!(room.enter(key("a"), 10).is_some());
    }
}
