//! Concurrent requests: at most `limit` units in flight.
//!
//! Each charge is a **lease**: it counts until it is given back, when its request is over,
//! or until the window is over, when its process must have died. A request that takes
//! longer than that renews its lease before ([`ConcurrentRequests::renew`]).
//!
//! In substance that is a sliding window log at full resolution in which to give back is
//! the rule, and so is this file: verbs and state are those of
//! [`sliding_window_log`](super::sliding_window_log). Of the laws of all algorithms one
//! reads otherwise here: `retry_after` is the instant at which enough leases have ended *if
//! nobody gives back or renews*. Mostly room comes sooner; nobody can know when.
//!
//! Each holder is an entry, so that the limit is bounded ([`ConcurrentRequests::MAX_LIMIT`]).

use super::sliding_window_log::{SlidingWindowLog, View};
use super::{Form, Resolution, Rule};
use crate::{Charged, Cost, Decision, Timestamp};

pub use super::sliding_window_log::State;

/// At most `limit` units in flight, each for a lease of `window` at most.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrentRequests(SlidingWindowLog);

impl ConcurrentRequests {
    /// The most units in flight: 16 bytes each, and to give one back moves all that were
    /// taken after it.
    pub const MAX_LIMIT: u64 = 10_000;

    pub(super) fn new(form: &Form) -> Self {
        Self(SlidingWindowLog::new(form, Resolution::Exact))
    }

    /// Lets a lease of `units` begin anew, after what it had has been given back as far as
    /// it still counted, and says when it began. What has lapsed meanwhile is charged again,
    /// whether there is room or not, as its request is in flight.
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

    /// Each lease stays as it is, so that it can be given back under any limit.
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
