//! Which requests to a server wait, are sent, or are shed.
//!
//! `call_time.rs` estimates from past calls how long the next calls take, and how many should be in
//! flight.

mod call_time;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::call_time::Call;
use self::call_time::CallTime;

/// Limits for calls and waiting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The maximum number of concurrent calls.
    pub(crate) calls: usize,
    /// The maximum number of requests per call.
    pub(crate) batch: usize,
    /// The maximum number of waiting requests.
    pub(crate) queue: usize,
    /// The longest time from a request to its answer.
    pub(crate) timeout: Duration,
}

/// The queue of requests `T` to a server, and its scheduling.
///
/// A request that cannot be answered before its deadline is shed, either when it is submitted or
/// when its call is assembled. The server therefore does not work for callers that have given up,
/// and under overload it still answers about as many requests as it can.
///
/// | a request | if |
/// |---|---|
/// | may wait | `call ≤ left` and `call × waiting / (batch × calls) ≤ (left − call) / 2` |
/// | is sent after waiting | `call ≤ left` |
/// | is always sent | it waits alone with half its timeout left and no call is in flight, so the estimate can recover |
///
/// `left` is the time until the deadline, and `call` the expected time of a call. It is at least
/// the age of the oldest call in flight, so a stall is noticed immediately. Half of the spare time
/// is reserved for calls that take longer.
///
/// Calls are spread evenly over the call time. Otherwise a distant server's slots would all be used
/// for small calls at the same time, and later requests would wait until these have returned.
///
/// Time is an argument, and this type performs no I/O. A *slot* is the right to have a call in
/// flight. Its holder calls [`next`](Self::next) until there is no next call.
#[derive(Debug)]
pub(crate) struct Pace<T> {
    bounds: Bounds,
    queue: VecDeque<Waiting<T>>,
    slots: usize,
    /// The calls in flight, oldest first.
    under_way: VecDeque<Call>,
    /// The number of requests answered so far.
    answered: usize,
    last_end: Option<Instant>,
    /// When the latest answered call was sent. The server answers calls in order, so the age of an
    /// earlier call no longer indicates a stall.
    last_answered: Option<Instant>,
    time: CallTime,
}

#[derive(Debug)]
struct Waiting<T> {
    request: T,
    deadline: Instant,
}

/// Whether a call takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    /// The call has no room for it.
    Full,
    /// Its caller has given up.
    Gone,
}

/// How a call ended. If it consists of several batches, the greatest value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ended {
    /// The call was not executed, so its duration is meaningless.
    Refused,
    /// The answer was lost or arrived too late.
    Lost,
    Answered,
}

/// A slot's next action.
#[derive(Debug)]
pub(crate) struct Next<T> {
    /// The next call. If `None`, the slot has been released.
    pub(crate) call: Option<(Call, Vec<T>)>,
    /// Requests that can no longer be answered before their deadline.
    pub(crate) shed: Vec<T>,
    /// Whether another slot was reserved, and needs a holder.
    pub(crate) another: bool,
}

impl<T> Pace<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queue: VecDeque::new(),
            slots: 0,
            under_way: VecDeque::new(),
            answered: 0,
            last_end: None,
            last_answered: None,
            time: CallTime::new(bounds),
        }
    }

    /// Whether no slot is in use. Then no request waits either.
    pub(crate) const fn is_idle(&self) -> bool {
        self.slots == 0
    }

    /// Records an answered call that held no slot, because the server was idle when it started. If
    /// it took much less time than expected, earlier estimates are discarded.
    pub(crate) fn answered_beside(&mut self, begun: Instant, now: Instant) {
        self.last_answered = self.last_answered.max(Some(begun));
        if now - begun < self.time.expected() / 4 {
            self.forget();
        }
    }

    /// Discards the estimates from past calls: the breaker has stopped calls, and the next server
    /// may be faster.
    pub(crate) fn forget(&mut self) {
        self.time = CallTime::new(self.bounds);
    }

    /// Returns the number of waiting requests.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Adds a request to the queue, or returns it if it must be shed. In both cases, call
    /// [`another_slot`](Self::another_slot) afterwards, because the next call may be due.
    pub(crate) fn submit(&mut self, request: T, deadline: Instant, now: Instant) -> Result<(), T> {
        if self.is_idle() && self.last_end.is_some_and(|at| now - at >= self.bounds.timeout) {
            self.time.forget();
        }
        if !self.is_idle() && !self.has_room(deadline, now) {
            return Err(request);
        }
        self.queue.push_back(Waiting { request, deadline });
        Ok(())
    }

    fn has_room(&self, deadline: Instant, now: Instant) -> bool {
        let left = deadline.saturating_duration_since(now);
        let Some(spare) = left.checked_sub(self.expected(now)) else { return false };
        self.queue.len() < self.bounds.queue && self.time.to_send(self.queue.len()) <= spare / 2
    }

    /// Returns how long a call is expected to take.
    fn expected(&self, now: Instant) -> Duration {
        let is_next = |call: &&Call| self.last_answered.is_none_or(|begun| begun <= call.begun);
        let oldest = self.under_way.iter().find(is_next);
        oldest.map_or(Duration::ZERO, |call| now - call.begun).max(self.time.expected())
    }

    /// Reserves another slot if that is worthwhile. Returns whether it did.
    pub(crate) fn another_slot(&mut self, now: Instant) -> bool {
        let is_another = self.slots < self.time.calls() && self.is_worth_a_call(self.slots, now);
        self.slots += usize::from(is_another);
        is_another
    }

    /// Whether to send another call beside `others`. Always, while half of the slots are free. In
    /// the other half, each slot needs a larger call than the one before, and some time since the
    /// last call.
    fn is_worth_a_call(&self, others: usize, now: Instant) -> bool {
        let calls = self.time.calls();
        let scarce = (2 * others).saturating_sub(calls);
        let last = self.under_way.back();
        let is_soon = last.is_some_and(|last| now - last.begun < self.time.interval());
        !(scarce > 0 && is_soon) && self.queue.len() >= (self.time.batch() * scarce / calls).max(1)
    }

    /// Returns a slot's next call, with the requests at the head of the queue that fit.
    pub(crate) fn next(&mut self, mut fit: impl FnMut(&T) -> Fit, now: Instant) -> Next<T> {
        let mut next = Next { call: None, shed: Vec::new(), another: false };
        let is_alone = self.time.is_next_alone(now);
        let is_surplus = self.slots > self.time.calls()
            || is_alone && !self.under_way.is_empty()
            || !self.is_worth_a_call(self.slots - 1, now);
        if is_surplus {
            self.slots -= 1;
            return next;
        }
        let expected = self.expected(now);
        let most = if is_alone { 1 } else { self.time.batch() };
        let mut requests = Vec::new();
        let mut is_full = false;
        while let Some(waiting) = self.queue.pop_front() {
            if waiting.deadline < now + expected {
                let is_last = self.queue.is_empty() && requests.is_empty();
                // An older request would probably be lost, and its call would not improve the
                // estimate.
                let is_fresh = waiting.deadline >= now + self.bounds.timeout / 2;
                if !is_last || !self.under_way.is_empty() || !is_fresh {
                    next.shed.push(waiting.request);
                    continue;
                }
                self.time.restart();
            }
            is_full = requests.len() == most;
            match if is_full { Fit::Full } else { fit(&waiting.request) } {
                Fit::Fits => requests.push(waiting.request),
                Fit::Gone => {}
                Fit::Full => {
                    is_full = true;
                    self.queue.push_front(waiting);
                    break;
                }
            }
        }
        if requests.is_empty() {
            self.slots -= 1;
            return next;
        }
        let (answered, count) = (self.answered, requests.len());
        let call = Call {
            begun: now,
            requests: count,
            answered,
            is_full: is_full && !is_alone,
            is_alone: self.under_way.is_empty(),
        };
        self.under_way.push_back(call);
        next.call = Some((call, requests));
        next.another = !is_alone && self.another_slot(now);
        next
    }

    /// Records that a call ended. Its slot continues with [`next`](Self::next).
    pub(crate) fn end(&mut self, call: Call, ended: Ended, now: Instant) {
        self.remove(call);
        self.last_end = Some(now);
        let took = now - call.begun;
        if ended == Ended::Answered {
            self.answered += call.requests;
            self.last_answered = self.last_answered.max(Some(call.begun));
            // Other calls may have run meanwhile, so check again that the call was alone.
            let was_alone = call.is_alone && self.under_way.is_empty();
            self.time.learn_base(took, was_alone && call.requests == 1, now);
        }
        if ended != Ended::Refused {
            let answered = self.answered - call.answered;
            self.time.learn(&call, took, answered, self.queue.len());
        }
    }

    /// Releases a slot that was dropped, and returns the waiting requests, which have no task to
    /// send them.
    pub(crate) fn abort(&mut self, call: Option<Call>) -> impl Iterator<Item = T> {
        if let Some(call) = call {
            self.remove(call);
        }
        self.slots -= 1;
        self.queue.drain(..).map(|waiting| waiting.request)
    }

    fn remove(&mut self, call: Call) {
        if let Some(index) = self.under_way.iter().position(|other| *other == call) {
            self.under_way.remove(index);
        }
    }

    /// Removes the requests with a deadline that has passed, and returns the next deadline.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<T>, Option<Instant>) {
        let mut expired = Vec::new();
        while let Some(waiting) = self.queue.front() {
            if waiting.deadline > now {
                return (expired, Some(waiting.deadline));
            }
            expired.extend(self.queue.pop_front().map(|waiting| waiting.request));
        }
        (expired, None)
    }
}
