//! Fixed window counter over calendar periods: at most `limit` units per day, week or month in some
//! time zone.
//!
//! It is [`fixed_window_counter`](super::fixed_window_counter) with windows of different lengths.
//! It resets just as exactly, and allows the same burst around a period boundary. A state contains
//! its own period, so the calendar's table is only needed to start the next period.

use super::{Form, Rule};
use crate::{Calendar, Charged, Cost, Decision, Micros, Outcome, Period, Timestamp};

/// The calendar window counter rule: at most `limit` units in each period of `calendar`.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarWindowCounter {
    limit: u64,
    calendar: Calendar,
}

/// The calendar window counter's state: `used` units were charged in `period`, the last at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    period: Period,
    used: u64,
    at: Timestamp,
}

impl State {
    /// The state after `units` more were charged.
    fn add(self, units: u64, now: Timestamp) -> Self {
        // The clock may have stepped back within the period.
        let at = if self.used == 0 { now } else { now.max(self.at) };
        Self { used: self.used + units, at, ..self }
    }
}

impl CalendarWindowCounter {
    pub(super) fn new(form: &Form, calendar: Calendar) -> Self {
        Self { limit: form.limit, calendar }
    }

    /// Returns the calendar that defines the windows.
    pub const fn calendar(&self) -> Calendar {
        self.calendar
    }

    fn decide(&self, state: State, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after = if state.used == 0 { Micros::ZERO } else { until_end(state, now) };
        let remaining = self.limit.saturating_sub(state.used);
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }
}

/// The time until the state's period is over.
fn until_end(state: State, now: Timestamp) -> Micros {
    state.period.end().since(now)
}

impl Rule for CalendarWindowCounter {
    type State = State;
    type View<'a> = State;

    fn fresh(&self) -> State {
        State::default()
    }

    #[inline]
    fn refresh(&self, state: &State, now: Timestamp) -> State {
        if self.is_fresh(state, now) {
            State { period: self.calendar.period(now), used: 0, at: now }
        } else {
            *state
        }
    }

    #[inline]
    fn assess(&self, view: State, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        if cost > self.limit {
            return self.decide(view, now, Outcome::ExceedsCapacity);
        }
        let used = view.used + cost;
        if cost == 0 || used <= self.limit {
            let charged_at = now.max(view.period.start());
            let outcome = Outcome::Allow { delay: Micros::ZERO, charged_at, refunded: 0 };
            self.decide(State { used, ..view }, now, outcome)
        } else {
            let retry_after = until_end(view, now);
            self.decide(view, now, Outcome::Deny { retry_after })
        }
    }

    #[inline]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        *state = self.refresh(state, now).add(cost.get(), now);
    }

    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        if !view.period.contains(charged.charged_at) {
            return 0;
        }
        let units = units.min(view.used);
        *state = State { used: view.used - units, ..view };
        units
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let units = units.min((2 * self.limit).saturating_sub(view.used));
        *state = view.add(units, now);
        units
    }

    /// Once the state's period is over, it does not count other versions' units until it is charged
    /// itself: a store without a calendar, such as the Redis script, does not know the next period.
    fn count(&self, state: &mut State, units: u64, now: Timestamp) -> bool {
        !self.is_fresh(state, now) && self.owe(state, units, now) == units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        if self.is_fresh(state, now) { 0 } else { state.used }
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.at
    }

    fn resume(&self, units: u64, at: Timestamp) -> State {
        State { period: self.calendar.period(at), used: units, at }
    }

    fn convert(&self, from: &Self, state: &State) -> State {
        if from.calendar == self.calendar {
            return *state;
        }
        self.resume(state.used, state.at)
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        state.used == 0 || now >= state.period.end()
    }

    fn last_instant(&self, state: &State, now: Timestamp) -> Timestamp {
        self.refresh(state, now).period.end() - Micros::new(1)
    }
}
