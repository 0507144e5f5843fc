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

/// The fixed window counter's state: `used` units were charged in the window that contains `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the last charge was made.
    pub at: Timestamp,
    /// The units charged in that window.
    pub used: u64,
}

/// The units used in a window, the window's start, and the later of the clock and the last charge.
#[derive(Clone, Copy, Debug)]
pub struct View {
    start: Timestamp,
    used: u64,
    seen: Timestamp,
}

impl FixedWindowCounter {
    pub(super) fn new(form: &Form) -> Self {
        Self { limit: form.limit, window: form.window.get() }
    }

    /// The start of the window that contains `instant`.
    fn start(&self, instant: Timestamp) -> Timestamp {
        instant - Micros::new(instant.as_micros() % self.window)
    }

    /// The time until the view's window is over.
    fn until_end(&self, view: View, now: Timestamp) -> Micros {
        (view.start + Micros::new(self.window)).since(now)
    }

    #[inline(always)]
    fn decide(&self, view: View, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after =
            if view.used == 0 { view.seen.since(now) } else { self.until_end(view, now) };
        let remaining = self.limit.saturating_sub(view.used);
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }
}

impl Rule for FixedWindowCounter {
    type State = State;
    type View<'a> = View;

    fn fresh(&self) -> State {
        State { at: Timestamp::EPOCH, used: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> View {
        // The last charge is later if its request queued, or if the clock has stepped back.
        let seen = now.max(state.at);
        let start = self.start(seen);
        let used = if state.at < start { 0 } else { state.used };
        View { start, used, seen }
    }

    #[inline(always)]
    fn assess(&self, view: View, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let (after, outcome) = if cost > self.limit {
            (view, Outcome::ExceedsCapacity)
        } else if cost == 0 || view.used + cost <= self.limit {
            let (delay, charged_at) = (Micros::ZERO, view.seen);
            let outcome = Outcome::Allow { delay, charged_at, refunded: 0 };
            (View { used: view.used + cost, ..view }, outcome)
        } else {
            (view, Outcome::Deny { retry_after: self.until_end(view, now) })
        };
        self.decide(after, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        let View { used, seen, .. } = self.refresh(state, now);
        *state = State { at: seen, used: used + cost.get() };
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        if self.start(charged.charged_at) != view.start {
            return 0;
        }
        let units = units.min(view.used);
        state.used = view.used - units;
        units
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let units = units.min((2 * self.limit).saturating_sub(view.used));
        *state = State { at: view.seen, used: view.used + units };
        units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.refresh(state, now).used
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.at
    }

    fn resume(&self, units: u64, at: Timestamp) -> State {
        State { at, used: units }
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        state.at <= now && self.refresh(state, now).used == 0
    }

    fn last_instant(&self, state: &State, now: Timestamp) -> Timestamp {
        let end = self.refresh(state, now).start.as_micros() + self.window;
        Timestamp::from_micros(end - 1)
    }
}
