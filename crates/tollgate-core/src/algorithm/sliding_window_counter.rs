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

/// The sliding window counter's state: `current` units were charged in window number `index` since
/// the epoch, `previous` units in the window before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The window's number, counted from the epoch.
    pub index: u64,
    /// The units charged in the previous window.
    pub previous: u64,
    /// The units charged in this window.
    pub current: u64,
}

/// A state, and the time elapsed in its window.
#[derive(Clone, Copy, Debug)]
pub struct View {
    state: State,
    elapsed: u64,
}

impl SlidingWindowCounter {
    pub(super) fn new(form: &Form) -> Self {
        Self { limit: form.limit, window: form.window.get() }
    }

    /// The units from the previous window that still count.
    fn weighted(&self, view: View) -> u64 {
        if view.state.previous == 0 {
            return 0;
        }
        mul_div_ceil(view.state.previous, self.window - view.elapsed, self.window)
    }

    fn used(&self, view: View) -> u64 {
        view.state.current + self.weighted(view)
    }

    /// The start of window number `index`. A corrupt state may contain an index beyond the
    /// representable time.
    fn start(&self, index: u64) -> Timestamp {
        Timestamp::from_micros(index.saturating_mul(self.window))
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
        let State { index, previous, current } = view.state;
        let room = self.limit - cost;
        if current <= room {
            let elapsed = self.until_weight(previous, room - current);
            return self.start(index) + Micros::new(elapsed);
        }
        self.start(index + 1) + Micros::new(self.until_weight(current, room))
    }

    #[inline(always)]
    fn decide(&self, state: State, used: u64, now: Timestamp, outcome: Outcome) -> Decision {
        let State { index, previous, current } = state;
        let reset_after = match (previous, current) {
            (0, 0) => Micros::ZERO,
            (_, 0) => self.start(index + 1).since(now),
            _ => self.start(index + 2).since(now),
        };
        let remaining = self.limit.saturating_sub(used);
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }
}

impl Rule for SlidingWindowCounter {
    type State = State;
    type View<'a> = View;

    fn fresh(&self) -> State {
        State { index: 0, previous: 0, current: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> View {
        let index = now.as_micros() / self.window;
        let state = match index.saturating_sub(state.index) {
            0 if state.previous > 0 || state.current > 0 => *state,
            1 => State { index, previous: state.current, current: 0 },
            _ => State { index, previous: 0, current: 0 },
        };
        View { state, elapsed: now.since(self.start(state.index)).get() }
    }

    #[inline(always)]
    fn assess(&self, view: View, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let used = self.used(view);
        let (taken, outcome) = if cost > self.limit {
            (0, Outcome::ExceedsCapacity)
        } else if cost == 0 || used + cost <= self.limit {
            let charged_at = now.max(self.start(view.state.index));
            (cost, Outcome::Allow { delay: Micros::ZERO, charged_at })
        } else {
            (0, Outcome::Deny { retry_after: self.fits_at(view, cost).since(now) })
        };
        let state = State { current: view.state.current + taken, ..view.state };
        self.decide(state, used + taken, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        *state = self.refresh(state, now).state;
        state.current += cost.get();
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        *state = self.refresh(state, now).state;
        let index = charged.charged_at.as_micros() / self.window;
        let count = if index == state.index {
            &mut state.current
        } else if index + 1 == state.index {
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
        *state = State { current: view.state.current + units, ..view.state };
        units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.used(self.refresh(state, now))
    }

    fn resume(&self, units: u64, now: Timestamp) -> State {
        State { index: now.as_micros() / self.window, previous: 0, current: units }
    }

    fn convert(&self, from: &Self, state: &State, now: Timestamp) -> State {
        if from.window == self.window {
            return *state;
        }
        // The clock may have stepped back to before the state's window.
        let seen = now.max(from.start(state.index));
        self.resume(from.consumed(state, now), seen)
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        let State { previous, current, .. } = self.refresh(state, now).state;
        previous == 0 && current == 0
    }

    fn last_instant(&self, state: &State, now: Timestamp) -> Timestamp {
        let end = (self.refresh(state, now).state.index + 1) * self.window;
        Timestamp::from_micros(end - 1)
    }
}
