//! Concurrent requests: at most `limit` units in flight.
//!
//! Each charge is a **permit**. It counts until its request finishes and returns it. If the process
//! dies, the permit expires after a window. Longer requests renew their permits
//! ([`ConcurrentRequests::renew`]).
//!
//! The implementation is a sliding window log at full resolution with regular refunds, so it shares
//! the methods and the state with [`sliding_window_log`](super::sliding_window_log). Two laws
//! differ. `retry_after` is when enough permits will have expired *without any returns or
//! renewals*. Units are usually free earlier, but the store cannot know when. And all versions of a
//! concurrency limit share a state, in which each permit retains its own expiry: each entry's
//! instant is a window before the expiry, so entries move if the window changes.
//!
//! Each request has its own entry, so the limit is bounded ([`ConcurrentRequests::MAX_LIMIT`]).

use super::sliding_window_log::{SlidingWindowLog, View};
use super::{Form, Resolution, Rule};
use crate::{Charged, Cost, Decision, Micros, Timestamp};

pub use super::sliding_window_log::State;

/// The concurrency limit rule: at most `limit` units in flight, each permit for at most `window`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrentRequests {
    log: SlidingWindowLog,
    window: Micros,
}

impl ConcurrentRequests {
    /// The largest concurrency limit. An entry takes 16 bytes, and returning a permit moves all
    /// later entries.
    pub const MAX_LIMIT: u64 = 10_000;

    pub(super) fn new(form: &Form) -> Self {
        Self { log: SlidingWindowLog::new(form, Resolution::Exact), window: form.window }
    }

    /// Returns a permit's time to live.
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// Restarts a permit of `units` after its old units were refunded, and returns its new start.
    /// Units that have lapsed are charged again, even beyond the limit, because their request is
    /// still in flight.
    pub fn renew(&self, state: &mut State, units: u64, now: Timestamp) -> Timestamp {
        let seen = self.log.prune(state, now);
        self.log.insert(state, seen, units);
        seen
    }
}

impl Rule for ConcurrentRequests {
    type State = State;
    type View<'a> = View<'a>;

    fn fresh(&self) -> State {
        self.log.fresh()
    }

    #[inline]
    fn refresh<'a>(&self, state: &'a State, now: Timestamp) -> View<'a> {
        self.log.refresh(state, now)
    }

    #[inline]
    fn assess(&self, view: View<'_>, now: Timestamp, cost: Cost) -> Decision {
        self.log.assess(view, now, cost)
    }

    #[inline]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        let seen = self.log.prune(state, now);
        self.log.insert(state, seen, cost.get());
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        self.log.prune(state, now);
        self.log.take(state, charged.resets_at - self.window, units)
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let seen = self.log.prune(state, now);
        let units = units.min(self.log.room_for_debt(state));
        if units > 0 {
            self.log.insert(state, seen, units);
        }
        units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.log.consumed(state, now)
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        self.log.counts_from(state)
    }

    fn resume(&self, units: u64, at: Timestamp) -> State {
        self.log.resume(units, at)
    }

    /// Permits are retained with their expiry, so they can be returned under any limit.
    fn convert(&self, from: &Self, state: &State) -> State {
        let mut converted = state.clone();
        converted.shift(from.window, self.window);
        converted
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        self.log.is_fresh(state, now)
    }

    fn max_heap_bytes(&self) -> usize {
        self.log.max_heap_bytes()
    }
}
