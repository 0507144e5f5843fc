//! Decides recorded requests on the clock of the log.
//!
//! | file | holds |
//! |---|---|
//! | `request.rs` | a recorded request |
//! | `fleet.rs` | the simulated processes and their stores |
//! | `waiting.rs` | waiting requests |
//! | `tally.rs` | counts per policy and route |
//! | `clients.rs` | counts per client |

mod clients;
mod fleet;
mod request;
mod tally;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::Arc;

use tollgate_core::{Cost, Micros, PolicyError, Receipt, ReceiptId, Store, StoreError, Timestamp};
use tollgate_engine::{
    self as engine, Charges, Conclusion, Correction, Limits, Rejection, Sleeping, Step,
};

use self::fleet::Replicas;
pub use self::fleet::{Fault, Fleet};
pub use self::request::{Client, Request};
use self::tally::Tallies;
use self::waiting::{Waiter, Woken};
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
    /// The store could not decide, and a limit fails closed.
    Undecided,
    /// The request waits for a limit. [`Replay::resolved`] returns the final answer later.
    Waits,
}

/// The final answer to a request that waited.
#[derive(Debug)]
pub struct Resolved {
    /// The request's number.
    pub number: u64,
    /// Whether it passed, and how long it waited.
    pub answer: Answer,
    /// The limits that the charges refer to.
    pub limits: Arc<Limits>,
    /// Its charges, with their decisions.
    pub charges: Charges,
}

/// A replay with its key state and counts.
///
/// Requests must be in chronological order. A request that is earlier than the previous request is
/// treated as if it arrived at the same time. Waits and responses that end at the same time do so in
/// the order in which their requests arrived. Decisions use the same code as a service with a memory
/// store.
pub struct Replay {
    replicas: Replicas,
    bounds: Bounds,
    tallies: Tallies,
    /// Future events, earliest first.
    events: BinaryHeap<Reverse<Event>>,
    waiting: HashMap<u64, (Waiter, Sleeping)>,
    woken: Woken,
    /// The number of requests so far, which is also the next request's number.
    requests: u64,
    receipts: u64,
    resolved: Vec<Resolved>,
    cut_short: u64,
}

/// A future event.
struct Event {
    at: Timestamp,
    /// The request's number, which orders events that have the same time.
    number: u64,
    what: What,
}

enum What {
    /// A response is complete, so its charges are settled.
    End {
        /// The number of the process that charged it.
        replica: usize,
        charges: Box<[(Receipt, Correction)]>,
    },
    /// A waiting request retries.
    Wake,
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
        match Replicas::new(&Fleet::default(), &bounds) {
            Ok(replicas) => Self::over(replicas, bounds),
            Err(_) => unreachable!("the default fleet has no share"),
        }
    }

    /// Creates a replay over several processes.
    ///
    /// # Errors
    /// The local share's denominator is zero.
    pub fn with_fleet(fleet: &Fleet, bounds: Bounds) -> Result<Self, PolicyError> {
        Ok(Self::over(Replicas::new(fleet, &bounds)?, bounds))
    }

    fn over(replicas: Replicas, bounds: Bounds) -> Self {
        Self {
            replicas,
            bounds,
            tallies: Tallies::new(&bounds),
            events: BinaryHeap::new(),
            waiting: HashMap::new(),
            woken: Woken::default(),
            requests: 0,
            receipts: 0,
            resolved: Vec::new(),
            cut_short: 0,
        }
    }

    /// Applies a fault to a shared [fleet](Fleet)'s store.
    ///
    /// # Errors
    /// Same as [`request`](Self::request).
    pub fn happens(&mut self, at: Timestamp, fault: Fault) -> Result<(), StoreError> {
        self.advance(at)?;
        self.replicas.happens(fault);
        Ok(())
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns when the next response is complete or the next waiting request continues.
    #[must_use]
    pub fn next_event(&self) -> Option<Timestamp> {
        self.events.peek().map(|Reverse(event)| event.at)
    }

    /// Advances the clock, and handles everything that happens up to that time. Returns the time,
    /// which is later than `at` if the clock is.
    ///
    /// # Errors
    /// Same as [`request`](Self::request).
    pub fn advance(&mut self, at: Timestamp) -> Result<Timestamp, StoreError> {
        while let Some(Reverse(event)) = self.events.peek()
            && event.at <= at
        {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.replicas.set_time(event.at.max(self.replicas.now()));
            self.happen(event)?;
        }
        let now = at.max(self.replicas.now());
        self.replicas.set_time(now);
        Ok(now)
    }

    /// Decides a request, and writes the decisions into its charges. If it waits, its charges are
    /// returned [later](Self::resolved). Requests are numbered from 0.
    ///
    /// # Errors
    /// The request charges the same policy and key under two quotas.
    pub fn request(&mut self, request: &mut Request<'_>) -> Result<Answer, StoreError> {
        let now = self.advance(request.at)?;
        let number = self.requests;
        self.requests += 1;
        self.tallies.reach(now);
        if request.charges.is_empty() {
            self.tallies.pass(request, true, now);
            return Ok(Answer::Allowed { wait: Micros::ZERO });
        }
        // A log does not contain the requests' memory.
        let queue = &self.replicas.get(request.replica).queue;
        let arrival = request.limits.may_wait().then(|| queue.arrive(0));
        let charges = std::mem::take(&mut request.charges);
        let (mut decided, asking) = engine::Request::start(request.limits, charges, arrival);
        let step = Step::Ask(asking);
        match self.advance_request(&mut decided, request.replica, request.limits, step, now) {
            Ok(conclusion) => {
                request.charges = decided.take_charges();
                self.conclude(number, request, conclusion, None)
            }
            Err(sleeping) => {
                self.tallies.join(request, now);
                let until = sleeping.until;
                self.sleep(number, Waiter::new(decided, request, now), sleeping, Some(until));
                Ok(Answer::Waits)
            }
        }
    }

    /// Takes a request's next steps.
    ///
    /// # Errors
    /// It has to sleep.
    fn advance_request(
        &self,
        request: &mut engine::Request,
        replica: usize,
        limits: &Limits,
        mut step: Step,
        now: Timestamp,
    ) -> Result<Conclusion, Sleeping> {
        loop {
            step = match step {
                Step::Done(conclusion) => return Ok(conclusion),
                Step::Sleep(sleeping) => return Err(sleeping),
                Step::Ask(asking) => {
                    let store = &self.replicas.get(replica).store;
                    let reply = store.decide(&asking.question.charges(limits, request.charges()));
                    // Stores in memory reply immediately.
                    let reply = reply.now().unwrap_or_else(|_| Err(not_ready()));
                    request.on_reply(asking, limits, reply, now)
                }
            };
        }
    }

    /// Counts a decided request. `waited` is set if it waited in the queue.
    fn conclude(
        &mut self,
        number: u64,
        request: &Request<'_>,
        conclusion: Conclusion,
        waited: Option<Micros>,
    ) -> Result<Answer, StoreError> {
        match conclusion {
            Conclusion::Pass(delay) => {
                self.tallies.decide(request, waited, true);
                self.hold(number, request, delay);
                let wait = tally::plus(waited.unwrap_or_default(), delay);
                Ok(Answer::Allowed { wait })
            }
            Conclusion::FailOpen(error) | Conclusion::Reject(Rejection::Undecided(error))
                if !error.is_outage() =>
            {
                Err(*error)
            }
            Conclusion::FailOpen(_) => {
                self.tallies.pass(request, true, self.replicas.now());
                Ok(Answer::Allowed { wait: waited.unwrap_or_default() })
            }
            Conclusion::Reject(Rejection::Undecided(_)) => {
                self.tallies.pass(request, false, self.replicas.now());
                Ok(Answer::Undecided)
            }
            Conclusion::Reject(_) => {
                self.tallies.decide(request, waited, false);
                Ok(Answer::Denied)
            }
        }
    }

    /// Lets a request sleep. It wakes when earlier requests leave, or at the latest when `wakes`.
    fn sleep(&mut self, number: u64, waiter: Waiter, sleeping: Sleeping, wakes: Option<Timestamp>) {
        let is_woken = sleeping.is_woken(&self.woken.waker(number));
        let wakes = if is_woken { Some(self.replicas.now()) } else { wakes };
        if let Some(at) = wakes {
            self.later(at, number, What::Wake);
        }
        self.waiting.insert(number, (waiter, sleeping));
    }

    /// Continues a waiting request. The requests that it wakes continue at the same time.
    fn wake(&mut self, number: u64) -> Result<(), StoreError> {
        let Some((mut waiter, sleeping)) = self.waiting.remove(&number) else { return Ok(()) };
        let now = self.replicas.now();
        let planned = sleeping.until;
        let step = waiter.request.on_wake(sleeping, now);
        let Waiter { request, replica, limits, .. } = &mut waiter;
        match self.advance_request(request, *replica, limits, step, now) {
            Err(sleeping) => {
                // Other wakes may be planned already.
                let until = sleeping.until;
                let wakes = (until != planned || until <= now).then_some(until);
                self.sleep(number, waiter, sleeping, wakes);
            }
            Ok(conclusion) => {
                let waited = now.since(waiter.since);
                let request = waiter.recorded();
                let answer = self.conclude(number, &request, conclusion, Some(waited))?;
                let charges = request.charges;
                self.resolved.push(Resolved { number, answer, limits: waiter.limits, charges });
            }
        }
        for number in self.woken.take() {
            self.later(now, number, What::Wake);
        }
        Ok(())
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

    /// Returns the final answers to requests that waited. Each call returns the answers since the
    /// previous call.
    pub fn resolved(&mut self) -> impl Iterator<Item = Resolved> + '_ {
        self.resolved.drain(..)
    }

    /// Completes all responses, decides all waiting requests, and returns the report.
    ///
    /// # Errors
    /// Same as [`request`](Self::request).
    pub fn finish(&mut self) -> Result<Report, StoreError> {
        while let Some(Reverse(event)) = self.events.pop() {
            self.replicas.set_time(event.at.max(self.replicas.now()));
            self.happen(event)?;
        }
        Ok(self.tallies.report(self.replicas.overflowed(), self.cut_short))
    }

    fn happen(&mut self, event: Event) -> Result<(), StoreError> {
        match event.what {
            What::End { replica, charges } => {
                for (receipt, correction) in &*charges {
                    match correction.apply(&self.replicas.get(replica).store, receipt).now() {
                        Ok(Ok(settled)) => self.tallies.settle(receipt, settled),
                        Ok(Err(error)) if !error.is_outage() => return Err(error),
                        // In an outage, the charge remains. Stores in memory reply immediately.
                        Ok(Err(_)) | Err(_) => {}
                    }
                }
                Ok(())
            }
            What::Wake => self.wake(event.number),
        }
    }

    /// Plans the corrections at the end of a request's response.
    fn hold(&mut self, number: u64, request: &Request<'_>, delay: Micros) {
        let Request { replica, limits, charges, corrections, duration, .. } = request;
        let is_permit = charges.iter().any(|applied| limits.of(applied).policy.is_concurrency());
        if corrections.is_empty() && !is_permit {
            return;
        }
        // By the store's clock, which may differ from the processes' clock.
        let now = charges.decided_at();
        let receipts = &mut self.receipts;
        let next_id = || {
            *receipts += 1;
            ReceiptId::new(0, now, *receipts)
        };
        let mut open = Vec::new();
        for receipt in charges.receipts(limits, next_id) {
            let correction = if receipt.policy.is_concurrency() {
                Some(Cost::ZERO.into())
            } else {
                let is_meant = |(limit, _): &&(u8, Correction)| {
                    let limit = limits.iter().nth(usize::from(*limit));
                    limit.is_some_and(|it| it.policy.name() == receipt.policy.name())
                };
                corrections.iter().find(is_meant).map(|(_, correction)| *correction)
            };
            open.extend(correction.map(|correction| (receipt, correction)));
        }
        if open.is_empty() {
            return;
        }
        if self.events.len() >= self.bounds.in_flight
            && let Some(Reverse(first)) = self.events.pop()
        {
            self.cut_short += 1;
            // Settling only fails for an invalid receipt, and the store created this receipt.
            let _ = self.happen(first);
        }
        let what = What::End { replica: *replica, charges: open.into() };
        self.later(self.replicas.now() + delay + *duration, number, what);
    }

    fn later(&mut self, at: Timestamp, number: u64, what: What) {
        self.events.push(Reverse(Event { at, number, what }));
    }
}

/// The error for a reply that is not ready, which stores in memory never return.
#[cold]
fn not_ready() -> StoreError {
    StoreError::invalid("simulated store", "the reply is not ready")
}

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("requests", &self.requests).finish_non_exhaustive()
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
