//! Concurrent requests: at most `limit` units in flight.
//!
//! Each charge is a **permit**. It counts until its request finishes and returns it. If the process
//! dies, the permit expires after a window. Longer requests renew their permits
//! ([`ConcurrentRequests::renew`]).
//!
//! The implementation is a sliding window log at full resolution with regular refunds, so it shares
//! the methods and the state with [`sliding_window_log`](super::sliding_window_log). One law
//! differs: `retry_after` is when enough permits will have expired *without any returns or
//! renewals*. Units are usually free earlier, but the store cannot know when.
//!
//! Each request has its own entry, so the limit is bounded ([`ConcurrentRequests::MAX_LIMIT`]).

use super::sliding_window_log::{SlidingWindowLog, View};
use super::{Form, Resolution, Rule};
use crate::{Charged, Cost, Decision, Timestamp};

pub use super::sliding_window_log::State;

/// The concurrency limit rule: at most `limit` units in flight, each permit for at most `window`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrentRequests(SlidingWindowLog);

impl ConcurrentRequests {
    /// The largest concurrency limit. An entry takes 16 bytes, and returning a permit moves all
    /// later entries.
    pub const MAX_LIMIT: u64 = 10_000;

    pub(super) fn new(form: &Form) -> Self {
        Self(SlidingWindowLog::new(form, Resolution::Exact))
    }

    /// Restarts a permit of `units` after its old units were refunded, and returns its new start.
    /// Units that have lapsed are charged again, even beyond the limit, because their request is
    /// still in flight.
    pub fn renew(&self, state: &mut State, units: u64, now: Timestamp) -> Timestamp {
        let seen = self.0.refresh(state, now).seen();
        self.0.owe(state, units, now);
        seen
    }
}

impl Rule for ConcurrentRequests {
    type State = State;
    type View<'a> = View<'a>;

    fn fresh(&self) -> State {
        self.0.fresh()
    }

    #[inline]
    fn refresh<'a>(&self, state: &'a State, now: Timestamp) -> View<'a> {
        self.0.refresh(state, now)
    }

    #[inline]
    fn assess(&self, view: View<'_>, now: Timestamp, cost: Cost) -> Decision {
        self.0.assess(view, now, cost)
    }

    #[inline]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        self.0.charge(state, now, cost);
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        self.0.give_back(state, charged, units, now)
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        self.0.owe(state, units, now)
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.0.consumed(state, now)
    }

    fn resume(&self, units: u64, now: Timestamp) -> State {
        self.0.resume(units, now)
    }

    /// Permits are retained, so they can be returned under any limit.
    fn convert(&self, from: &Self, state: &State, now: Timestamp) -> State {
        let mut converted = state.clone();
        from.0.prune(&mut converted, now);
        self.0.prune(&mut converted, now);
        converted
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        self.0.is_fresh(state, now)
    }

    fn max_heap_bytes(&self) -> usize {
        self.0.max_heap_bytes()
    }
}
