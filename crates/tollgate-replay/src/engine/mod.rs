//! Requests in, decisions out, on the clock of the requests.
//!
//! | file | holds |
//! |---|---|
//! | `request.rs` | a recorded request |
//! | `waiting.rs` | requests that wait for their limits |
//! | `queue.rs` | how they join, look again and leave |
//! | `tally.rs` | counts of policies and routes |
//! | `clients.rs` | counts of each client |

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

/// How much memory a replay may take.
///
/// # What is exact
///
/// All decisions are exact while the store has room for the keys that are in use at once; otherwise
/// [`Report::is_exact`] is false. Counts of clients are exact up to the bound. Requests of further
/// clients are decided in the same way, and counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most clients that are counted apart, at some 40 to 80 bytes each. Default: 14 680 064,
    /// which fit into a table of 2^24 places.
    pub clients: usize,
    /// The most denied clients that are named, at some 300 bytes each. Default: 65 536.
    pub named: usize,
    /// The most bytes for the states of keys. Default: 2 GiB. A sliding window log reserves its
    /// largest possible size.
    pub store_bytes: usize,
    /// The most requests whose responses are not over. If there are more, the earliest response
    /// ends too soon. Default: a million.
    pub in_flight: usize,
    /// The most requests that wait at once, as in the service. Default: 1024.
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

/// The answer to a request.
///
/// The set is closed: a caller that counts answers has to treat each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It passes after a wait, which is zero unless a queue delays the request.
    Allowed {
        /// The wait.
        wait: Micros,
    },
    /// It is denied.
    Denied,
    /// It waits for a limit. [`Replay::resolved`] has the final answer later.
    Waits,
}

/// A replay: the limits, the state of their keys, and what has been counted.
///
/// Requests must be in the order of their times. A request that is earlier than the request before it
/// gets the time of that request. The same functions decide as in a service with a store in memory.
pub struct Replay {
    store: MemoryStore<LogClock>,
    clock: LogClock,
    bounds: Bounds,
    tallies: Tallies,
    /// Later events, by their times.
    events: BinaryHeap<Reverse<Event>>,
    waiting: Waiting,
    /// Requests so far, which number them.
    requests: u64,
    receipts: u64,
    resolved: Vec<(u64, Answer)>,
    cut_short: u64,
}

/// The time of the log. Clones tell the same time.
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

/// Something that happens later.
struct Event {
    at: Timestamp,
    /// Events of one instant happen in the order of their numbers.
    number: u64,
    what: What,
}

enum What {
    /// A response is over: its charges are settled.
    End(Box<[(Receipt, Cost)]>),
    /// A request that waits looks again.
    Wake(u64),
}

impl Replay {
    /// A replay of no request so far, within the default bounds.
    #[must_use]
    pub fn new() -> Self {
        Self::within(Bounds::default())
    }

    /// A replay of no request so far.
    #[must_use]
    pub fn within(bounds: Bounds) -> Self {
        let clock = LogClock::default();
        let store = MemoryStore::builder()
            .clock(clock.clone())
            // One thread decides, so that one lock is enough.
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

    /// Decides one request. Its number is that of the requests before it, from 0.
    ///
    /// # Errors
    /// The request asks for one policy and key under two quotas.
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

    /// Counts a request that is denied before any limit: its client is blocked or unknown.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn forbid(&mut self, request: &Request<'_>) -> Result<(), StoreError> {
        let now = self.advance(request.at)?;
        self.requests += 1;
        self.tallies.reach(now);
        self.tallies.pass(request, false, now);
        Ok(())
    }

    /// The final answers to requests that waited, by their numbers, since the last call.
    pub fn resolved(&mut self) -> impl Iterator<Item = (u64, Answer)> + '_ {
        self.resolved.drain(..)
    }

    /// Lets all responses end and all requests that wait pass or be denied, and reports.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn finish(&mut self) -> Result<Report, StoreError> {
        while let Some(Reverse(event)) = self.events.pop() {
            self.clock.set(event.at.max(self.clock.now()));
            self.happen(event.what)?;
        }
        let overflowed = self.store.stats().overflowed;
        Ok(self.tallies.report(overflowed, self.cut_short))
    }

    /// Lets time pass, and what happens meanwhile happen.
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
                    let settled = self.store.settle(receipt, *actual).into_inner()?;
                    self.tallies.settle(receipt, settled);
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
            // The error of a settlement is that of its receipt, which the store has made.
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

/// Whether a charge is too dear for its policy at any time.
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
