//! Sliding window counter: two counts that approximate a sliding window.
//!
//! The previous window is a single count, assumed to be evenly distributed: at `e` into the current
//! window, a share of `(window − e) / window` of the previous units still counts. This prevents the
//! boundary burst that fixed windows allow, and takes 24 bytes per key at any limit. The share is
//! rounded up, so the sum never exceeds the limit if the past was even. A client with a steady rate
//! therefore gets `limit − 1` units per window (at a limit of 1, a single unit every two windows).
//! If the past was uneven, up to twice the limit can be allowed in some window across the boundary.
//! Only the log rules that out.
//!
//! The formula is from Cloudflare, "Counting things, a lot of different things".

use super::{Form, Rule};
use crate::math::{mul_div_ceil, mul_div_floor};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The sliding window counter rule: at most `limit` units in this window plus a share of the
/// previous window.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindowCounter {
    limit: u64,
    window: u64,
}

/// The sliding window counter's state: `current` units were charged in the window that contains
/// `at`, `previous` units in the window before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the last charge was made.
    pub at: Timestamp,
    /// The units charged in the previous window.
    pub previous: u64,
    /// The units charged in this window.
    pub current: u64,
}

/// The units used in two windows, the later window's start, and the time elapsed in it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    start: Timestamp,
    previous: u64,
    current: u64,
    elapsed: u64,
}

impl View {
    /// The later of the clock and the last charge.
    const fn seen(self) -> Timestamp {
        Timestamp::from_micros(self.start.as_micros() + self.elapsed)
    }
}

impl SlidingWindowCounter {
    pub(super) fn new(form: &Form) -> Self {
        Self { limit: form.limit, window: form.window.get() }
    }

    /// The units from the previous window that still count.
    fn weighted(&self, view: View) -> u64 {
        if view.previous == 0 {
            return 0;
        }
        mul_div_ceil(view.previous, self.window - view.elapsed, self.window)
    }

    fn used(&self, view: View) -> u64 {
        view.current + self.weighted(view)
    }

    /// The start of the window that contains `instant`.
    fn start(&self, instant: Timestamp) -> Timestamp {
        instant - Micros::new(instant.as_micros() % self.window)
    }

    /// The start of the window that is this number of windows after the window at `start`.
    fn later(&self, start: Timestamp, windows: u64) -> Timestamp {
        start + Micros::new(windows * self.window)
    }

    /// The state after `units` more were charged.
    fn add(&self, view: View, units: u64) -> State {
        let View { previous, current, .. } = view;
        State { at: view.seen(), previous, current: current + units }
    }

    /// The time after a window's start at which the `previous` window's units weigh at most `room`.
    fn until_weight(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        self.window - mul_div_floor(room, self.window, previous)
    }

    /// The first instant at which `cost` fits. This is in the current window if only the previous
    /// window's share is in the way; otherwise it is when the current count has aged enough.
    fn fits_at(&self, view: View, cost: u64) -> Timestamp {
        let View { start, previous, current, .. } = view;
        let room = self.limit - cost;
        if current <= room {
            let elapsed = self.until_weight(previous, room - current);
            return start + Micros::new(elapsed);
        }
        self.later(start, 1) + Micros::new(self.until_weight(current, room))
    }

    #[inline(always)]
    fn decide(&self, view: View, used: u64, now: Timestamp, outcome: Outcome) -> Decision {
        let View { start, previous, current, .. } = view;
        let reset_after = match (previous, current) {
            (0, 0) => view.seen().since(now),
            (_, 0) => self.later(start, 1).since(now),
            _ => self.later(start, 2).since(now),
        };
        let remaining = self.limit.saturating_sub(used);
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }
}

impl Rule for SlidingWindowCounter {
    type State = State;
    type View<'a> = View;

    fn fresh(&self) -> State {
        State { at: Timestamp::EPOCH, previous: 0, current: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> View {
        let State { at, previous, current } = *state;
        // The last charge is later if its request queued, or if the clock has stepped back.
        let seen = now.max(at);
        let start = self.start(seen);
        let elapsed = seen.since(start).get();
        if at >= start {
            return View { start, previous, current, elapsed };
        }
        let is_previous = start.since(at).get() <= self.window;
        let previous = if is_previous { current } else { 0 };
        View { start, previous, current: 0, elapsed }
    }

    #[inline(always)]
    fn assess(&self, view: View, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let used = self.used(view);
        let (taken, outcome) = if cost > self.limit {
            (0, Outcome::ExceedsCapacity)
        } else if cost == 0 || used + cost <= self.limit {
            let (delay, charged_at) = (Micros::ZERO, view.seen());
            (cost, Outcome::Allow { delay, charged_at, refunded: 0 })
        } else {
            (0, Outcome::Deny { retry_after: self.fits_at(view, cost).since(now) })
        };
        let after = View { current: view.current + taken, ..view };
        self.decide(after, used + taken, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        *state = self.add(self.refresh(state, now), cost.get());
    }

    /// Corrects the counts as of the last charge, so `at` does not change.
    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let (charged_in, last) = (self.start(charged.charged_at), self.start(state.at));
        let count = if self.later(charged_in, 2) <= now {
            return 0;
        } else if charged_in == last {
            &mut state.current
        } else if self.later(charged_in, 1) == last {
            &mut state.previous
        } else {
            return 0;
        };
        let units = units.min(*count);
        *count -= units;
        units
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let units = units.min((2 * self.limit).saturating_sub(self.used(view)));
        *state = self.add(view, units);
        units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.used(self.refresh(state, now))
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.at
    }

    fn resume(&self, units: u64, at: Timestamp) -> State {
        State { at, previous: 0, current: units }
    }

    fn convert(&self, from: &Self, state: &State) -> State {
        if from.window == self.window {
            return *state;
        }
        let at = from.counts_from(state);
        self.resume(from.consumed(state, at), at)
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        let View { previous, current, .. } = self.refresh(state, now);
        state.at <= now && previous + current == 0
    }

    fn last_instant(&self, state: &State, now: Timestamp) -> Timestamp {
        let end = self.refresh(state, now).start.as_micros() + self.window;
        Timestamp::from_micros(end - 1)
    }
}
