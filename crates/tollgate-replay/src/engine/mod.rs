//! Decides recorded requests on the clock of the log.
//!
//! | file | holds |
//! |---|---|
//! | `request.rs` | a recorded request |
//! | `waiting.rs` | waiting requests and their queues |
//! | `queue.rs` | how requests start to wait, retry, and finish |
//! | `tally.rs` | counts per policy and route |
//! | `clients.rs` | counts per client |

mod clients;
mod queue;
mod request;
mod tally;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Micros, Receipt, ReceiptId, Store, StoreError, Timestamp, Verdict,
};
use tollgate_memory::{Clock, MemoryStore};

pub use self::request::{Ask, Client, Request};
use self::tally::Tallies;
use self::waiting::Waiting;
use crate::report::Report;

/// Limits a replay's memory.
///
/// # Accuracy
///
/// All decisions are exact as long as the store has room for the keys in use; otherwise
/// [`Report::is_exact`] returns false. Client counts are exact up to the bound `clients`.
/// Requests from additional clients are decided in the same way but counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of clients that are counted separately, at 40 to 80 bytes each. Default:
    /// 14 680 064, which is the capacity of a hash table with 2^24 slots.
    pub clients: usize,
    /// The maximum number of denied clients listed by name, at about 300 bytes each. Default:
    /// 65 536.
    pub named: usize,
    /// The maximum number of bytes for key state. Default: 2 GiB. A sliding window log reserves its
    /// maximum size.
    pub store_bytes: usize,
    /// The maximum number of requests in flight. When it is exceeded, the earliest response is cut
    /// short. Default: a million.
    pub in_flight: usize,
    /// The maximum number of waiting requests, which should match the service's setting. Default:
    /// 1024.
    pub waiting: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            clients: 7 << 21,
            named: 1 << 16,
            store_bytes: 2 << 30,
            in_flight: 1_000_000,
            waiting: 1_024,
        }
    }
}

/// A request's outcome.
///
/// The enum is exhaustive, because callers that count outcomes must handle every variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is allowed after a wait, which is zero unless a queue delays the request.
    Allowed {
        /// How long the request waits.
        wait: Micros,
    },
    /// The request is denied.
    Denied,
    /// The request waits for a limit. [`Replay::resolved`] returns the final answer later.
    Waits,
}

/// A replay with its key state and counts.
///
/// Requests must be in chronological order. A request that is earlier than the previous request is
/// treated as if it arrived at the same time. Decisions use the same code as a service with a
/// memory store.
pub struct Replay {
    store: MemoryStore<LogClock>,
    clock: LogClock,
    bounds: Bounds,
    tallies: Tallies,
    /// Future events, earliest first.
    events: BinaryHeap<Reverse<Event>>,
    waiting: Waiting,
    /// The number of requests so far, which is also the next request's number.
    requests: u64,
    receipts: u64,
    resolved: Vec<(u64, Answer)>,
    cut_short: u64,
}

/// A clock that follows the log. Clones share the time.
#[derive(Clone, Debug, Default)]
struct LogClock(Arc<AtomicU64>);

impl Clock for LogClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl LogClock {
    fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::Relaxed);
    }
}

/// A future event.
struct Event {
    at: Timestamp,
    /// Orders events that have the same time.
    number: u64,
    what: What,
}

enum What {
    /// A response is complete, so its charges are settled.
    End(Box<[(Receipt, Cost)]>),
    /// A waiting request retries.
    Wake(u64),
}

impl Replay {
    /// Creates a replay with the default bounds.
    #[must_use]
    pub fn new() -> Self {
        Self::within(Bounds::default())
    }

    /// Creates a replay.
    #[must_use]
    pub fn within(bounds: Bounds) -> Self {
        let clock = LogClock::default();
        let store = MemoryStore::builder()
            .clock(clock.clone())
            // The replay is single-threaded, so more shards would not help.
            .shards(1)
            .max_keys(usize::MAX)
            .max_bytes(bounds.store_bytes)
            .build();
        Self {
            store,
            clock,
            bounds,
            tallies: Tallies::new(&bounds),
            events: BinaryHeap::new(),
            waiting: Waiting::new(bounds.waiting),
            requests: 0,
            receipts: 0,
            resolved: Vec::new(),
            cut_short: 0,
        }
    }

    /// Decides a request. Requests are numbered from 0.
    ///
    /// # Errors
    /// The request charges the same policy and key under two quotas.
    pub fn request(&mut self, request: &Request<'_>) -> Result<Answer, StoreError> {
        let now = self.advance(request.at)?;
        let number = self.requests;
        self.requests += 1;
        self.tallies.reach(now);
        if request.asks.is_empty() {
            self.tallies.pass(request, true, now);
            return Ok(Answer::Allowed { wait: Micros::ZERO });
        }
        let waits_at_all = request.asks.iter().any(|ask| ask.waits.is_some());
        if waits_at_all && self.waiting.is_behind(request.asks) && !never_passes(request.asks) {
            return self.join(number, request, 0, None, now);
        }
        let verdict = self.decide(request.asks)?;
        if verdict.is_admitted() {
            let wait = verdict.delay();
            self.admit(request, &verdict, None);
            return Ok(Answer::Allowed { wait });
        }
        if waits_at_all && let Some(denied) = waiting::denied(request.asks, &verdict, now, None) {
            return self.join(number, request, denied.keys, Some((denied, verdict)), now);
        }
        self.tallies.decide(request, &verdict, None, false);
        Ok(Answer::Denied)
    }

    /// Counts a request that is denied before any limit because its client is blocked or unknown.
    ///
    /// # Errors
    /// Same as [`request`](Self::request).
    pub fn forbid(&mut self, request: &Request<'_>) -> Result<(), StoreError> {
        let now = self.advance(request.at)?;
        self.requests += 1;
        self.tallies.reach(now);
        self.tallies.pass(request, false, now);
        Ok(())
    }

    /// Returns the final answers to requests that waited, with the requests' numbers. Each call
    /// returns the answers since the previous call.
    pub fn resolved(&mut self) -> impl Iterator<Item = (u64, Answer)> + '_ {
        self.resolved.drain(..)
    }

    /// Completes all responses, decides all waiting requests, and returns the report.
    ///
    /// # Errors
    /// Same as [`request`](Self::request).
    pub fn finish(&mut self) -> Result<Report, StoreError> {
        while let Some(Reverse(event)) = self.events.pop() {
            self.clock.set(event.at.max(self.clock.now()));
            self.happen(event.what)?;
        }
        let overflowed = self.store.stats().overflowed;
        Ok(self.tallies.report(overflowed, self.cut_short))
    }

    /// Advances the clock and handles the events up to that time.
    fn advance(&mut self, at: Timestamp) -> Result<Timestamp, StoreError> {
        while let Some(Reverse(event)) = self.events.peek()
            && event.at <= at
        {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.clock.set(event.at.max(self.clock.now()));
            self.happen(event.what)?;
        }
        let now = at.max(self.clock.now());
        self.clock.set(now);
        Ok(now)
    }

    fn happen(&mut self, what: What) -> Result<(), StoreError> {
        match what {
            What::End(charges) => {
                for (receipt, actual) in &*charges {
                    // A memory store replies immediately.
                    if let Ok(settled) = self.store.settle(receipt, *actual).now() {
                        self.tallies.settle(receipt, settled?);
                    }
                }
                Ok(())
            }
            What::Wake(number) => self.wake(number),
        }
    }

    fn decide(&self, asks: &[Ask<'_>]) -> Result<Verdict, StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = asks.iter().map(Ask::charge).collect();
        self.store.decide(&charges).into_inner()
    }

    fn admit(&mut self, request: &Request<'_>, verdict: &Verdict, waited: Option<Micros>) {
        let now = verdict.decided_at();
        self.tallies.decide(request, verdict, waited, true);
        let settles = |ask: &Ask<'_>| ask.actual.is_some() || ask.policy.is_concurrency();
        if !request.asks.iter().any(settles) {
            return;
        }
        let charges: SmallVec<[Charge<'_>; 4]> = request.asks.iter().map(Ask::charge).collect();
        let receipts = &mut self.receipts;
        let next_id = || {
            *receipts += 1;
            ReceiptId::new(0, now, *receipts)
        };
        let mut open = Vec::new();
        for receipt in verdict.receipts(&charges, next_id) {
            let ask = request
                .asks
                .iter()
                .find(|ask| ask.policy.name() == receipt.policy.name() && *ask.key == receipt.key);
            let actual = match ask {
                Some(ask) if ask.policy.is_concurrency() => Some(Cost::ZERO),
                Some(ask) => ask.actual,
                None => None,
            };
            open.extend(actual.map(|actual| (receipt, actual)));
        }
        if self.events.len() >= self.bounds.in_flight
            && let Some(Reverse(first)) = self.events.pop()
        {
            self.cut_short += 1;
            // Settling only fails for an invalid receipt, and the store created this receipt.
            let _ = self.happen(first.what);
        }
        let at = now + verdict.delay() + request.duration;
        self.later(at, What::End(open.into()));
    }

    fn later(&mut self, at: Timestamp, what: What) {
        self.receipts += 1;
        self.events.push(Reverse(Event { at, number: self.receipts, what }));
    }
}

/// Whether a charge exceeds its policy's capacity, so it can never be allowed.
fn never_passes(asks: &[Ask<'_>]) -> bool {
    asks.iter().any(|ask| ask.enforce && ask.cost.get() > ask.policy.capacity())
}

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("requests", &self.requests)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
