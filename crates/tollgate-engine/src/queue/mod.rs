//! The wait queue: its bounds, and how requests enter and leave it.

mod keys;
mod lanes;
mod signal;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

#[cfg(not(test))]
use parking_lot::Mutex;
#[cfg(test)]
use tollgate_interleavings::Mutex;

pub(crate) use self::keys::KeySet;
use self::lanes::Lanes;
pub(crate) use self::lanes::{ArrivalNumber, LaneKey, Member};

/// A queue of waiting requests. Each key serves its requests in the order of arrival.
///
/// **Clones share the same queue** and bounds. By default up to 1024 requests and 64 MiB can wait.
/// Requests with the same key may use up to half of both bounds, but at least one request.
/// Requests under [`Key::GLOBAL`](tollgate_core::Key::GLOBAL) may use the entire queue.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    max_requests: AtomicUsize,
    max_bytes: AtomicUsize,
    arrivals: AtomicU64,
    /// The number of lanes in the queue. A request takes the lock only if another request waits.
    lanes: AtomicUsize,
    waiters: Mutex<Waiters>,
}

/// The waiting requests.
#[derive(Default)]
struct Waiters {
    total: QueueUsage,
    /// How much of the queue each non-global key holds.
    by_key: HashMap<LaneKey, QueueUsage>,
    lanes: Lanes,
}

/// The number and bytes of waiting requests.
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

/// The arrival of a request that may have to wait.
#[derive(Debug)]
pub struct Arrival {
    queue: Queue,
    pub(crate) number: ArrivalNumber,
    /// The number of bytes that the request holds while it waits.
    bytes: usize,
    pub(crate) others_wait: bool,
}

/// A request's position in the wait queue. When this is dropped, the request leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Queue,
    bytes: usize,
    member: Member,
}

impl Queue {
    /// Creates a queue with the default bounds.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            max_requests: AtomicUsize::new(1_024),
            max_bytes: AtomicUsize::new(64 << 20),
            arrivals: AtomicU64::new(0),
            lanes: AtomicUsize::new(0),
            waiters: Mutex::default(),
        }))
    }

    /// Sets how many requests can wait at the same time. Applies to later requests.
    pub fn set_max_requests(&self, requests: usize) {
        self.0.max_requests.store(requests, Ordering::Relaxed);
    }

    /// Sets the total number of bytes that waiting requests can hold. Applies to later requests.
    pub fn set_max_bytes(&self, bytes: usize) {
        self.0.max_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Records the arrival of a request that would hold this many bytes while it waits. Requests
    /// wait in the order of these calls.
    #[inline]
    pub fn arrive(&self, bytes: usize) -> Arrival {
        let number = self.0.arrivals.fetch_add(1, Ordering::Relaxed);
        let others_wait = self.0.lanes.load(Ordering::Acquire) > 0;
        Arrival { queue: self.clone(), number, bytes, others_wait }
    }

    /// Changes the waiters, publishes the number of lanes, and wakes requests after the lock is
    /// released.
    fn change<T>(&self, change: impl FnOnce(&mut Waiters, &mut Vec<Waker>) -> T) -> T {
        let mut woken = Vec::new();
        let mut waiters = self.0.waiters.lock();
        let result = change(&mut waiters, &mut woken);
        self.0.lanes.store(waiters.lanes.len(), Ordering::Release);
        drop(waiters);
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

impl Arrival {
    /// Enters the lanes of the keys that the request waits for; see [`Lanes::enter`]. Returns
    /// `None` if it waits for no key.
    ///
    /// # Errors
    /// The queue is full, or a key has used its part. The value contains the keys that the request
    /// would have waited for.
    pub(crate) fn enter(
        &self,
        mut member: Member,
        denying: KeySet,
    ) -> Result<Option<Ticket>, KeySet> {
        let (bytes, shared) = (self.bytes, &*self.queue.0);
        let most = QueueUsage {
            requests: shared.max_requests.load(Ordering::Relaxed),
            bytes: shared.max_bytes.load(Ordering::Relaxed),
        };
        let entered = self
            .queue
            .change(|waiters, woken| waiters.enter(bytes, &mut member, denying, most, woken));
        let ticket = || Ticket { queue: self.queue.clone(), bytes, member };
        entered.map(|waits| waits.then(ticket))
    }
}

impl Waiters {
    fn enter(
        &mut self,
        bytes: usize,
        member: &mut Member,
        denying: KeySet,
        most: QueueUsage,
        woken: &mut Vec<Waker>,
    ) -> Result<bool, KeySet> {
        let waits_for = denying.union(self.lanes.behind(member));
        if waits_for.is_empty() {
            return Ok(false);
        }
        let waiting = self.total.with(bytes, most).ok_or(waits_for)?;
        let part =
            QueueUsage { requests: most.requests.div_ceil(2), bytes: most.bytes.div_ceil(2) };
        let is_full = |key| self.by_key.get(key).is_some_and(|it| it.with(bytes, part).is_none());
        // A client's own limit admits many concurrent requests while it has a unit left. If they
        // all wait for a shared limit, they must not fill the queue.
        if own_keys(member).any(is_full) {
            return Err(waits_for);
        }
        self.total = waiting;
        for key in own_keys(member) {
            let held = self.by_key.entry(key.clone()).or_default();
            *held = QueueUsage { requests: held.requests + 1, bytes: held.bytes + bytes };
        }
        self.lanes.enter(member, denying, woken);
        Ok(true)
    }
}

fn own_keys(member: &Member) -> impl Iterator<Item = &LaneKey> {
    member.own.iter().map(|number| &member.keys[number])
}

impl Ticket {
    /// Moves the request into the lanes of the keys that it waits for; see [`Lanes::enter`].
    pub(crate) fn waits(&mut self, denying: KeySet) -> bool {
        let member = &mut self.member;
        self.queue.change(|waiters, woken| waiters.lanes.enter(member, denying, woken))
    }

    pub(crate) fn units_ahead(&self, number: usize) -> u64 {
        self.queue.0.waiters.lock().lanes.units_ahead(&self.member, number)
    }

    pub(crate) const fn waits_for(&self) -> KeySet {
        self.member.joined
    }

    /// Returns whether the request became the first in a lane since the last call. Otherwise
    /// `waker` is called when it does.
    pub(crate) fn is_woken(&self, waker: &Waker) -> bool {
        self.member.is_first.take(waker)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Self { queue, bytes, member } = self;
        queue.change(|waiters, woken| {
            waiters.total = waiters.total.without(*bytes);
            for key in own_keys(member) {
                let Some(held) = waiters.by_key.get_mut(key) else { continue };
                *held = held.without(*bytes);
                if held.requests == 0 {
                    waiters.by_key.remove(key);
                }
            }
            waiters.lanes.leave(member, member.joined, woken);
        });
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { max_requests, max_bytes, waiters, .. } = &*self.0;
        let waiters = waiters.lock();
        let (waiting, lanes) = (waiters.total.requests, waiters.lanes.len());
        drop(waiters);
        f.debug_struct("Queue")
            .field("max_requests", max_requests)
            .field("max_bytes", max_bytes)
            .field("waiting", &waiting)
            .field("lanes", &lanes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
