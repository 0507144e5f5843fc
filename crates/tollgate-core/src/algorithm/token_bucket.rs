//! Token bucket: a bucket with a `capacity` in tokens that is refilled at the quota's rate.
//!
//! A client may take the entire burst immediately and then continues at the rate. Over any span
//! `t`, at most `burst + limit · t / window` units are admitted. With a burst equal to the limit
//! (the default), this is up to twice the limit in a window. If a window must never exceed `limit`,
//! set a smaller burst or use a sliding window.
//!
//! * `refill: greedy` refills tokens continuously.
//! * `refill: interval` refills `limit` tokens together at the end of each window. The first window
//!   starts with the first charge to a full bucket.
//!
//! The state counts *missing* tokens, scaled to integers (see `scale.rs`). So a bucket is never
//! rounded and never drifts, and a full bucket is zero at any size. Time is in whole microseconds:
//! if a token takes a fraction of a microsecond, a bucket with a single token cannot use the rest
//! of that microsecond.

use super::{Form, Refill, Rule};
use crate::math::mul_div_ceil;
use crate::scale::{Scale, restart};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The token bucket rule: up to `capacity` tokens, with `limit` tokens refilled per `window`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    capacity: u64,
    /// The refill per window. In lowest terms if continuous, so equal rates are equal; as
    /// configured if in intervals.
    limit: u64,
    window: u64,
    refill: Refill,
    scale: Scale,
    /// The capacity, scaled.
    full: u64,
}

/// The token bucket's state: `missing` tokens, scaled, at the instant `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of missing tokens, scaled.
    pub missing: u64,
    /// The time of the last charge or, with refill in intervals, the interval's start.
    pub at: Timestamp,
    /// The number of tokens refunded so far, scaled. Zero with refill in intervals.
    pub refunded: u64,
}

impl TokenBucket {
    pub(super) fn new(form: &Form, refill: Refill) -> Self {
        let (scale, limit, window) = match refill {
            Refill::Greedy => {
                let scale = Scale::new(form.limit, form.window);
                (scale, scale.rate, scale.unit)
            }
            // Whole tokens are refilled, so no finer scale is needed.
            Refill::Interval => (Scale { unit: 1, rate: 0 }, form.limit, form.window.get()),
        };
        Self {
            capacity: form.capacity,
            limit,
            window,
            refill,
            scale,
            full: form.capacity * scale.unit,
        }
    }

    /// Returns the refill rate in units per time: in lowest terms if continuous, as configured if
    /// in intervals. Buckets with equal rates and capacities are equal.
    pub const fn rate(&self) -> (u64, Micros) {
        (self.limit, Micros::new(self.window))
    }

    /// The time from `state.at` until `missing` tokens have been refilled.
    #[inline(always)]
    fn until_restored(&self, missing: u64) -> Micros {
        Micros::new(match self.refill {
            Refill::Greedy => missing.div_ceil(self.scale.rate),
            Refill::Interval => missing.div_ceil(self.limit).saturating_mul(self.window),
        })
    }

    #[inline(always)]
    fn decide(&self, state: State, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after = match state.missing {
            0 => state.at.since(now),
            missing => (state.at + self.until_restored(missing)).since(now),
        };
        let remaining = self.full.saturating_sub(state.missing) / self.scale.unit;
        Decision { outcome, limit: self.capacity, remaining, reset_after }
    }
}

impl Rule for TokenBucket {
    type State = State;
    type View<'a> = State;

    fn fresh(&self) -> State {
        State { missing: 0, at: Timestamp::EPOCH, refunded: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> State {
        let elapsed = now.since(state.at).get();
        let (restored, at) = match self.refill {
            Refill::Greedy => (elapsed.saturating_mul(self.scale.rate), now),
            Refill::Interval => {
                // Usually the interval is not over yet, which a comparison shows without a
                // division.
                let intervals = if elapsed < self.window { 0 } else { elapsed / self.window };
                let start = state.at + Micros::new(intervals * self.window);
                (intervals.saturating_mul(self.limit), start)
            }
        };
        match state.missing.saturating_sub(restored) {
            // The last charge is later if its request queued in the store and left.
            0 => State { missing: 0, at: now.max(state.at), ..*state },
            missing => State { missing, at: at.max(state.at), ..*state },
        }
    }

    #[inline(always)]
    fn assess(&self, view: State, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let (state, outcome) = if cost > self.capacity {
            (view, Outcome::ExceedsCapacity)
        } else {
            let missing = view.missing + cost * self.scale.unit;
            if cost == 0 || missing <= self.full {
                let (charged_at, refunded) = (now.max(view.at), view.refunded);
                let outcome = Outcome::Allow { delay: Micros::ZERO, charged_at, refunded };
                (State { missing, ..view }, outcome)
            } else {
                let fits_at = view.at + self.until_restored(missing - self.full);
                (view, Outcome::Deny { retry_after: fits_at.since(now) })
            }
        };
        self.decide(state, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        *state = self.refresh(state, now);
        state.missing += cost.get() * self.scale.unit;
    }

    /// The same as by default, with a single refresh.
    #[inline(always)]
    fn take(&self, state: &mut State, now: Timestamp, cost: Cost) -> Decision {
        let view = self.refresh(state, now);
        let decision = self.assess(view, now, cost);
        if decision.allows() && cost > Cost::ZERO {
            *state = State { missing: view.missing + cost.get() * self.scale.unit, ..view };
        }
        decision
    }

    /// Greedy: tokens that may have been refilled since the charge are not refunded again (see
    /// `Scale::refundable`). The level at the last charge is corrected, so `at` does not change.
    ///
    /// Interval: units are only refunded within the charge's interval. The interval continues even
    /// if this charge started it, because other clients may wait for its end.
    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let scaled = match self.refill {
            Refill::Greedy => self.scale.refundable(charged, units, view.refunded, view.at),
            Refill::Interval if charged.charged_at < view.at => 0,
            Refill::Interval => units.min(charged.cost.get()),
        };
        let scaled = scaled.min(view.missing);
        match self.refill {
            Refill::Greedy => {
                state.missing -= scaled;
                state.refunded += scaled;
            }
            // Without a refund, the interval's start is not stored: it is the time of the last charge.
            Refill::Interval if scaled == 0 => {}
            Refill::Interval => *state = State { missing: view.missing - scaled, ..view },
        }
        scaled / self.scale.unit
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        *state = self.refresh(state, now);
        let units = units.min((2 * self.full).saturating_sub(state.missing) / self.scale.unit);
        state.missing += units * self.scale.unit;
        units
    }

    /// Never more than the capacity is missing because of another version. Otherwise a client would
    /// pay under a small quota for units that a larger quota had granted. Intervals under two
    /// versions end at different times, so there the excess is a debt.
    fn count(&self, state: &mut State, units: u64, now: Timestamp) -> bool {
        if self.refill == Refill::Interval {
            return self.owe(state, units, now) == units;
        }
        *state = self.refresh(state, now);
        let missing = state.missing.saturating_add(units.saturating_mul(self.scale.unit));
        state.missing = missing.min(self.full).max(state.missing);
        missing == state.missing
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.refresh(state, now).missing.div_ceil(self.scale.unit)
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.at
    }

    /// At most the capacity is missing, for the same reason as in [`count`](Rule::count).
    fn resume(&self, units: u64, at: Timestamp) -> State {
        State { missing: units.min(self.capacity) * self.scale.unit, at, refunded: 0 }
    }

    fn convert(&self, from: &Self, state: &State) -> State {
        let missing = mul_div_ceil(state.missing, self.scale.unit, from.scale.unit).min(self.full);
        State { missing, at: state.at, refunded: 0 }
    }

    fn restart_refunds(&self, state: &mut State) -> bool {
        restart(&mut state.refunded)
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        state.at <= now && self.refresh(state, now).missing == 0
    }
}
