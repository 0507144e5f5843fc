//! Leaky bucket: a bucket of `capacity` units that drains at the rate of the quota.
//!
//! * `mode: queue` (the default): a request waits until the work before it has drained, so that
//!   requests leave at an even rate. The decision has this wait as `delay`. The store keeps the
//!   schedule, so departures are even over all replicas together. A request without room, or with a
//!   wait above `max_wait`, is denied.
//! * `mode: meter`: a request with room leaves at once. The bucket only measures, and admits
//!   exactly the requests of a greedy token bucket.
//!
//! Levels are scaled to whole numbers (see `scale.rs`), so that nothing is rounded and the schedule
//! does not drift.

use super::{Form, LeakyMode, Rule};
use crate::math::mul_div_ceil;
use crate::scale::Scale;
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The rule of a leaky bucket: up to `capacity` units, of which `limit` drain per window.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    capacity: u64,
    mode: LeakyMode,
    scale: Scale,
    /// The capacity, scaled.
    full: u64,
}

/// The state of a leaky bucket: the scaled level at the last charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The units in the bucket, scaled.
    pub level: u64,
    /// The time of the last charge.
    pub at: Timestamp,
}

impl LeakyBucket {
    pub(super) fn new(form: &Form, mode: LeakyMode) -> Self {
        let scale = Scale::new(form.limit, form.window);
        let mode = match mode {
            // No wait outlasts time, and so no limit of one need: alike, they are equal.
            LeakyMode::Queue { max_wait: Some(max_wait) } => {
                let end = Timestamp::MAX.since(Timestamp::EPOCH);
                LeakyMode::Queue { max_wait: Some(max_wait.min(end)) }
            }
            mode => mode,
        };
        Self { capacity: form.capacity, mode, scale, full: form.capacity * scale.unit }
    }

    /// Returns the units per time that drain, in lowest terms. Buckets with equal rates, capacities
    /// and modes are equal.
    pub const fn rate(&self) -> (u64, Micros) {
        (self.scale.rate, Micros::new(self.scale.unit))
    }

    /// The time until `level` has drained.
    fn until_drained(&self, level: u64) -> Micros {
        Micros::new(level.div_ceil(self.scale.rate))
    }

    /// When the bucket is empty, if nothing else comes.
    fn empty_at(&self, state: State) -> Timestamp {
        state.at + self.until_drained(state.level)
    }

    /// How long a request charged on top of `state` is held back.
    fn delay(&self, state: State, now: Timestamp) -> Micros {
        match self.mode {
            LeakyMode::Queue { .. } if state.level > 0 => self.empty_at(state).since(now),
            _ => Micros::ZERO,
        }
    }

    /// Whether nothing was charged after `charged`: without it, the bucket would have
    /// been empty just when its request was to leave.
    fn is_last(&self, state: State, charged: &Charged) -> bool {
        let cost = charged.cost.get() * self.scale.unit;
        state.at == charged.charged_at
            && state.level >= cost
            && self.empty_at(State { level: state.level - cost, ..state }) == charged.leaves_at
    }

    /// How much longer than the longest wait a request would wait, charged on top of `state`. Zero
    /// without a longest wait, so that this case needs no division.
    fn too_long(&self, state: State, now: Timestamp) -> Micros {
        match self.mode {
            LeakyMode::Queue { max_wait: Some(max_wait) } => {
                Micros::new(self.delay(state, now).get().saturating_sub(max_wait.get()))
            }
            _ => Micros::ZERO,
        }
    }

    /// A request that would wait too long finds no room, whatever its cost.
    fn remaining(&self, state: State, now: Timestamp) -> u64 {
        if self.too_long(state, now) > Micros::ZERO {
            return 0;
        }
        self.full.saturating_sub(state.level) / self.scale.unit
    }

    /// The outcome for `cost`, and the state behind the numbers for the client.
    #[inline(always)]
    fn answer(&self, view: State, now: Timestamp, cost: u64) -> (State, Outcome) {
        if cost > self.capacity {
            return (view, Outcome::ExceedsCapacity);
        }
        if cost == 0 {
            return (view, Outcome::Allow { delay: Micros::ZERO, charged_at: view.at });
        }
        let level = view.level + cost * self.scale.unit;
        let too_long = self.too_long(view, now);
        if level <= self.full && too_long == Micros::ZERO {
            let delay = self.delay(view, now);
            return (State { level, ..view }, Outcome::Allow { delay, charged_at: view.at });
        }
        // Room comes as the bucket drains, which it does not while the clock stands
        // before the last charge; the wait shortens by itself even then.
        let room_after = match level.saturating_sub(self.full) {
            0 => Micros::ZERO,
            over => (view.at + self.until_drained(over)).since(now),
        };
        (view, Outcome::Deny { retry_after: room_after.max(too_long) })
    }

    #[inline(always)]
    fn decide(&self, state: State, now: Timestamp, outcome: Outcome) -> Decision {
        let reset_after =
            if state.level == 0 { Micros::ZERO } else { self.empty_at(state).since(now) };
        let remaining = self.remaining(state, now);
        Decision { outcome, limit: self.capacity, remaining, reset_after }
    }
}

impl Rule for LeakyBucket {
    type State = State;
    type View<'a> = State;

    fn fresh(&self) -> State {
        State { level: 0, at: Timestamp::EPOCH }
    }

    #[inline(always)]
    fn refresh(&self, state: &State, now: Timestamp) -> State {
        let drained = now.since(state.at).get().saturating_mul(self.scale.rate);
        match state.level.saturating_sub(drained) {
            0 => State { level: 0, at: now },
            level => State { level, at: now.max(state.at) },
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

    /// A place in the queue is refunded only without later places: other requests have their times,
    /// and two must not leave at once. A meter refunds units that have not drained.
    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let view = self.refresh(state, now);
        let scaled = units.min(charged.cost.get()) * self.scale.unit;
        match self.mode {
            // As if the last charge had been smaller: what drained since, drains again.
            LeakyMode::Queue { .. } if self.is_last(*state, charged) => state.level -= scaled,
            LeakyMode::Queue { .. } => return 0,
            LeakyMode::Meter => {
                let since = view.at.since(charged.charged_at).get();
                let drained = since.saturating_mul(self.scale.rate);
                let level = view.level - scaled.saturating_sub(drained).min(view.level);
                *state = State { level, ..view };
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

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        self.refresh(state, now).level.div_ceil(self.scale.unit)
    }

    /// No more than the capacity can be in the bucket, or a client would wait under a
    /// small quota for what a large one had granted.
    fn resume(&self, units: u64, now: Timestamp) -> State {
        State { level: units.min(self.capacity) * self.scale.unit, at: now }
    }

    fn convert(&self, from: &Self, state: &State, now: Timestamp) -> State {
        let view = from.refresh(state, now);
        let level = mul_div_ceil(view.level, self.scale.unit, from.scale.unit).min(self.full);
        State { level, at: view.at }
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        self.refresh(state, now).level == 0
    }
}
