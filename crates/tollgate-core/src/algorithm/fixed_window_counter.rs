//! Fixed window counter: at most `limit` units in each window, aligned to the epoch.
//!
//! Windows follow one another from the Unix epoch and are the same for every key. For example, a
//! 60-second window starts with every minute. This is the cheapest algorithm, and the time at which
//! the quota resets is exact. But it only looks at a single window: a client that spends its quota
//! at the end of a window and again at the start of the next gets up to `2 · limit` units in a span
//! shorter than a window.

use super::{Form, Rule};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The fixed window counter rule: at most `limit` units in each `window`.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindowCounter {
    limit: u64,
    window: u64,
}

/// The fixed window counter's state: `used` units were charged in window number `index` since the
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The window's number, counted from the epoch.
    pub index: u64,
    /// The units charged in that window.
    pub used: u64,
}

impl FixedWindowCounter {
    pub(super) fn new(form: &Form) -> Self {
        Self { limit: form.limit, window: form.window.get() }
    }

    /// The start of window number `index`. A corrupt state may contain an index beyond the
    /// representable time.
    fn start(&self, index: u64) -> Timestamp {
        Timestamp::from_micros(index.saturating_mul(self.window))
    }

    /// The time until the state's window is over.
    fn until_end(&self, state: State, now: Timestamp) -> Micros {
        self.start(state.index + 1).since(now)
    }

    #[inline(always)]
    fn decide(&self, state: State, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after = if state.used == 0 { Micros::ZERO } else { self.until_end(state, now) };
        let remaining = self.limit.saturating_sub(state.used);
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }
}

impl Rule for FixedWindowCounter {
    type State = State;
    type View<'a> = State;

    fn fresh(&self) -> State {
        State { index: 0, used: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> State {
        let index = now.as_micros() / self.window;
        if index > state.index || state.used == 0 { State { index, used: 0 } } else { *state }
    }

    #[inline(always)]
    fn assess(&self, view: State, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let (state, outcome) = if cost > self.limit {
            (view, Outcome::ExceedsCapacity)
        } else if cost == 0 || view.used + cost <= self.limit {
            let charged_at = now.max(self.start(view.index));
            let outcome = Outcome::Allow { delay: Micros::ZERO, charged_at };
            (State { used: view.used + cost, ..view }, outcome)
        } else {
            (view, Outcome::Deny { retry_after: self.until_end(view, now) })
        };
        self.decide(state, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        let view = self.refresh(state, now);
        *state = State { used: view.used + cost.get(), ..view };
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        if charged.charged_at.as_micros() / self.window != view.index {
            return 0;
        }
        let units = units.min(view.used);
        *state = State { used: view.used - units, ..view };
        units
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let units = units.min((2 * self.limit).saturating_sub(view.used));
        *state = State { used: view.used + units, ..view };
        units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.refresh(state, now).used
    }

    fn resume(&self, units: u64, now: Timestamp) -> State {
        State { index: now.as_micros() / self.window, used: units }
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
        self.refresh(state, now).used == 0
    }

    fn last_instant(&self, state: &State, now: Timestamp) -> Timestamp {
        let end = (self.refresh(state, now).index + 1) * self.window;
        Timestamp::from_micros(end - 1)
    }
}
