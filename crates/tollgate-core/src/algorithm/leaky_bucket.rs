//! Leaky bucket: a bucket with a `capacity` in units that drains at the quota's rate.
//!
//! * `mode: queue` (the default): a request waits until the work before it has drained, so requests
//!   leave at an even rate. The decision returns this wait as `delay`. Because the store has the
//!   schedule, departures are evenly spaced over all replicas together. A request is denied if the
//!   bucket has no room or the wait would exceed `max_wait`.
//! * `mode: meter`: a request that finds room leaves immediately. The bucket only measures, and
//!   admits exactly the same requests as a greedy token bucket.
//!
//! Levels are scaled to integers (see `scale.rs`), so the schedule is never rounded and does not
//! drift.

use super::{Form, LeakyMode, Rule};
use crate::math::mul_div_ceil;
use crate::scale::{Scale, restart};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The leaky bucket rule: up to `capacity` units, with `limit` units draining per window.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    capacity: u64,
    mode: LeakyMode,
    scale: Scale,
    /// The capacity, scaled.
    full: u64,
}

/// The leaky bucket's state: the scaled level at the last charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The units in the bucket, scaled.
    pub level: u64,
    /// When the last charge was made.
    pub at: Timestamp,
    /// The number of units refunded so far, scaled. Zero in queue mode.
    pub refunded: u64,
}

impl LeakyBucket {
    pub(super) fn new(form: &Form, mode: LeakyMode) -> Self {
        let scale = Scale::new(form.limit, form.window);
        let mode = match mode {
            // No wait can exceed the representable time, so longer limits are clamped to it. Rules
            // that behave the same are then equal.
            LeakyMode::Queue { max_wait: Some(max_wait) } => {
                let end = Timestamp::MAX.since(Timestamp::EPOCH);
                LeakyMode::Queue { max_wait: Some(max_wait.min(end)) }
            }
            mode => mode,
        };
        Self { capacity: form.capacity, mode, scale, full: form.capacity * scale.unit }
    }

    /// Returns the drain rate in units per time, in lowest terms. Buckets with equal rates,
    /// capacities and modes are equal.
    pub const fn rate(&self) -> (u64, Micros) {
        (self.scale.rate, Micros::new(self.scale.unit))
    }

    /// The time it takes for `level` to drain.
    fn until_drained(&self, level: u64) -> Micros {
        Micros::new(level.div_ceil(self.scale.rate))
    }

    /// When the bucket will be empty if no more requests arrive.
    fn empty_at(&self, state: State) -> Timestamp {
        state.at + self.until_drained(state.level)
    }

    /// How long a request is delayed if it is charged on top of `state`.
    fn delay(&self, state: State, now: Timestamp) -> Micros {
        match self.mode {
            LeakyMode::Queue { .. } if state.level > 0 => self.empty_at(state).since(now),
            _ => Micros::ZERO,
        }
    }

    /// Whether `charged` is the last charge. If so, the bucket without this charge would be empty
    /// exactly when the request was due to leave.
    fn is_last(&self, state: State, charged: &Charged) -> bool {
        let cost = charged.cost.get().saturating_mul(self.scale.unit);
        state.at == charged.charged_at
            && state.level >= cost
            && self.empty_at(State { level: state.level - cost, ..state }) == charged.leaves_at
    }

    /// By how much a request that is charged on top of `state` would exceed `max_wait`. Zero if
    /// there is no `max_wait`, which saves a division in that case.
    fn too_long(&self, state: State, now: Timestamp) -> Micros {
        match self.mode {
            LeakyMode::Queue { max_wait: Some(max_wait) } => {
                Micros::new(self.delay(state, now).get().saturating_sub(max_wait.get()))
            }
            _ => Micros::ZERO,
        }
    }

    const fn allowed(view: State, delay: Micros) -> Outcome {
        Outcome::Allow { delay, charged_at: view.at, refunded: view.refunded }
    }

    /// If the wait is too long, no units remain, regardless of the level.
    fn remaining(&self, state: State, now: Timestamp) -> u64 {
        if self.too_long(state, now) > Micros::ZERO {
            return 0;
        }
        self.full.saturating_sub(state.level) / self.scale.unit
    }

    /// The outcome for `cost`, and the state from which the client's numbers are computed.
    #[inline(always)]
    fn answer(&self, view: State, now: Timestamp, cost: u64) -> (State, Outcome) {
        if cost > self.capacity {
            return (view, Outcome::ExceedsCapacity);
        }
        if cost == 0 {
            return (view, Self::allowed(view, Micros::ZERO));
        }
        let level = view.level + cost * self.scale.unit;
        let too_long = self.too_long(view, now);
        if level <= self.full && too_long == Micros::ZERO {
            return (State { level, ..view }, Self::allowed(view, self.delay(view, now)));
        }
        // Room becomes available as the bucket drains, but the bucket does not drain while the
        // clock is behind the last charge. The wait gets shorter even then.
        let room_after = match level.saturating_sub(self.full) {
            0 => Micros::ZERO,
            over => (view.at + self.until_drained(over)).since(now),
        };
        (view, Outcome::Deny { retry_after: room_after.max(too_long) })
    }

    #[inline(always)]
    fn decide(&self, state: State, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after = match state.level {
            0 => state.at.since(now),
            _ => self.empty_at(state).since(now),
        };
        let remaining = self.remaining(state, now);
        Decision { outcome, limit: self.capacity, remaining, reset_after }
    }
}

impl Rule for LeakyBucket {
    type State = State;
    type View<'a> = State;

    fn fresh(&self) -> State {
        State { level: 0, at: Timestamp::EPOCH, refunded: 0 }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> State {
        let drained = now.since(state.at).get().saturating_mul(self.scale.rate);
        match state.level.saturating_sub(drained) {
            // The last charge is later if its request queued in the store and left.
            0 if self.mode == LeakyMode::Meter => {
                State { level: 0, at: now.max(state.at), ..*state }
            }
            0 => State { level: 0, at: now, ..*state },
            level => State { level, at: now.max(state.at), ..*state },
        }
    }

    #[inline(always)]
    fn assess(&self, view: State, now: Timestamp, cost: Cost) -> Decision {
        let (state, outcome) = self.answer(view, now, cost.get());
        self.decide(state, now, outcome)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        *state = self.refresh(state, now);
        state.level += cost.get() * self.scale.unit;
    }

    /// In queue mode, only the last charge is refunded: later requests already have their departure
    /// times, and two requests must not leave at the same time. In meter mode, the units that
    /// certainly have not drained yet are refunded (see `Scale::refundable`).
    ///
    /// The level at the last charge is corrected, and drains from then on.
    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        match self.mode {
            LeakyMode::Queue { .. } if self.is_last(*state, charged) => {
                state.level -= units.min(charged.cost.get()) * self.scale.unit;
            }
            LeakyMode::Queue { .. } => return 0,
            LeakyMode::Meter => {
                let scaled = self.scale.refundable(charged, units, view.refunded, view.at);
                let scaled = scaled.min(view.level);
                state.level -= scaled;
                state.refunded += scaled;
            }
        }
        (view.level - self.refresh(state, now).level) / self.scale.unit
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        *state = self.refresh(state, now);
        let units = units.min((2 * self.full).saturating_sub(state.level) / self.scale.unit);
        state.level += units * self.scale.unit;
        units
    }

    /// Another version never fills the bucket beyond its capacity. Otherwise a client would wait
    /// under a small quota for units that a larger quota had granted.
    fn count(&self, state: &mut State, units: u64, now: Timestamp) -> bool {
        *state = self.refresh(state, now);
        let level = state.level.saturating_add(units.saturating_mul(self.scale.unit));
        state.level = level.min(self.full).max(state.level);
        level == state.level
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.refresh(state, now).level.div_ceil(self.scale.unit)
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.at
    }

    /// The bucket is at most full, for the same reason as in [`count`](Rule::count).
    fn resume(&self, units: u64, at: Timestamp) -> State {
        State { level: units.min(self.capacity) * self.scale.unit, at, refunded: 0 }
    }

    fn convert(&self, from: &Self, state: &State) -> State {
        let level = mul_div_ceil(state.level, self.scale.unit, from.scale.unit).min(self.full);
        State { level, at: state.at, refunded: 0 }
    }

    fn restart_refunds(&self, state: &mut State) -> bool {
        restart(&mut state.refunded)
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        let is_past = state.at <= now || self.mode != LeakyMode::Meter;
        is_past && self.refresh(state, now).level == 0
    }
}
