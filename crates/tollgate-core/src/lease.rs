//! Blocks of units that others may spend without asking: how a key counts them.
//!
//! Whoever may spend units out of sight of the store holds a [`Hold`] of them until an
//! instant. A key has its state, as one of the algorithms keeps it, and beside it its
//! [`Holds`]. The construction is one for all algorithms and uses only their verbs:
//!
//! * A hold that is **open** counts as if all of it were charged now: a request for `c` is
//!   assessed as one for `c` and what is held.
//! * A hold that has **lapsed** is charged at its last instant ([`Holds::lapse`]).
//! * A hold that is **settled** is gone, and what was spent of it is charged at the instant
//!   of settling.
//!
//! So each unit counts at the latest instant at which it may have been spent.
//!
//! # Why no limit is ever exceeded
//!
//! Let `t` be an instant at which a unit of a hold is spent and `g ≤ t` the last at which the
//! store granted anything: since then nothing was promised. Take any span that ends at `t`,
//! and what was spent in it. Charges were written at their instants. What was spent of holds
//! settled by `g` was charged later than it was spent and not later than `g`; what was spent
//! of holds lapsed by `g` likewise; and all others were open at `g` and counted then in full.
//! So what was spent in the span is at most what `g` counted in it, and with that `g` found
//! the limit kept.
//!
//! * A log and a counter look at spans that reach back a window from `t`; of what `g` counted
//!   they forget some by `t`, never more than a decision at `t` would.
//! * The level of a bucket is the most, over all spans that end at `t`, of what was charged in
//!   it less what drained. A charge that is dated later drains later.
//! * A counter must not find what was spent in one window in the next: a hold ends with its
//!   window ([`Rule::last_instant`]).
//!
//! It takes an algorithm in which a later charge never means more room later. In a queue and
//! in a bucket that refills in intervals it can: there an instant decides about others' turns,
//! or begins an interval. [`Policy::with_lease`](crate::Policy::with_lease) refuses both.

use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Rule;
use crate::{Cost, Decision, Micros, Outcome, Timestamp};

/// How much of a quota a replica may hold at a time to spend it without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    numerator: u32,
    denominator: u32,
    ttl: Micros,
}

impl Lease {
    /// The shortest time for which units are leased: less than a few round trips is no use.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// Up to `numerator / denominator` of the capacity at a time in the hands of one replica,
    /// for a second.
    pub const fn of(numerator: u32, denominator: u32) -> Self {
        Self { numerator, denominator, ttl: Micros::new(1_000_000) }
    }

    /// For so long. What is not spent or returned by then is lost to the quota as if spent.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// The time for which units are leased.
    pub const fn time_to_live(&self) -> Micros {
        self.ttl
    }

    /// The most units of a capacity that a replica holds at a time: at least one.
    pub fn units(&self, capacity: u64) -> u64 {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        let units = u128::from(capacity) * numerator / denominator.max(1);
        u64::try_from(units).unwrap_or(capacity).clamp(1, capacity)
    }

    /// The share, if it is one: more than nothing and at most the whole.
    pub(crate) const fn is_share(&self) -> bool {
        self.numerator > 0 && self.numerator <= self.denominator
    }

    /// The share as it was stated.
    pub const fn share(&self) -> (u32, u32) {
        (self.numerator, self.denominator)
    }
}

/// A twentieth for a second.
impl Default for Lease {
    fn default() -> Self {
        Self::of(1, 20)
    }
}

/// Units that someone may spend without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What no other hold of the key is called.
    pub id: u64,
    /// How many at most.
    pub units: u64,
    /// The last instant at which one may be spent.
    pub until: Timestamp,
}

/// What a store answers to who asks for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The units that may be spent from now on; none if there is no room.
    pub units: u64,
    /// For how long: up to the last instant.
    pub lasts: Micros,
    /// What is left beside all blocks.
    pub remaining: u64,
    /// Until the key is fresh, at least.
    pub reset_after: Micros,
    /// When a unit would be left, if nothing was granted.
    pub retry_after: Micros,
}

/// The holds of a key that have not been settled, in the order in which they end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(SmallVec<[Hold; 2]>);

impl Holds {
    /// The most holds of a key. Whoever comes later is answered one by one.
    pub const MAX: usize = 64;

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, in the order in which they end.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter()
    }

    /// The units of all of them.
    pub fn units(&self) -> u64 {
        self.0.iter().map(|hold| hold.units).sum()
    }

    /// Charges the holds that have come to their end before `now`, each at its last instant.
    /// Everything below expects that this was done.
    pub fn lapse<R: Rule>(&mut self, rule: &R, state: &mut R::State, now: Timestamp) {
        let lapsed = self.0.iter().take_while(|hold| hold.until < now).count();
        self.lapse_first(lapsed, rule, state);
    }

    fn lapse_first<R: Rule>(&mut self, count: usize, rule: &R, state: &mut R::State) {
        for hold in self.0.drain(..count) {
            // What fitted when it was granted does so still, unless a debt was made since; then
            // all together stays within the bound of debts.
            rule.owe(state, hold.units, hold.until);
        }
    }

    /// Decides on `cost` beside what is held; changes nothing.
    ///
    /// `retry_after` is when it passes if nobody returns what is held; returned units make it
    /// pass sooner. Of a sliding window counter it is a little late, since what is held now
    /// will have aged with the rest. Where so much is held that it alone stands in the way, it
    /// is the end of the first hold, and may be too early. `reset_after` counts what is held as spent
    /// now: it is longer if that is spent later, shorter if it is returned.
    pub fn assess<R: Rule>(
        &self,
        rule: &R,
        view: R::View<'_>,
        now: Timestamp,
        cost: Cost,
    ) -> Decision {
        let alone = rule.assess(view, now, cost);
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else { return alone };
        let held = self.units();
        let beside = rule.assess(view, now, cost.plus(Cost::new(held)));
        let left = beside.remaining.saturating_sub(held);
        let (outcome, remaining) = match (alone.outcome, beside.outcome) {
            (Outcome::ExceedsCapacity, _) => (Outcome::ExceedsCapacity, left),
            // Nothing is asked for, and so nothing waits, whatever is left.
            (_, Outcome::Allow { .. }) if cost == Cost::ZERO => (alone.outcome, beside.remaining),
            (_, _) if cost == Cost::ZERO => (alone.outcome, left),
            (_, Outcome::Allow { .. }) => (beside.outcome, beside.remaining),
            (_, Outcome::Deny { .. }) => (beside.outcome, left),
            _ => {
                let end = first.until.since(now).max(Micros::new(1));
                let retry_after = end.max(alone.retry_after().unwrap_or_default());
                (Outcome::Deny { retry_after }, left)
            }
        };
        let reset_after = beside.reset_after.max(last.until.since(now));
        Decision { outcome, limit: alone.limit, remaining, reset_after }
    }

    /// Grants up to `units` for `ttl`: as many as are left, or none, and says which. None as well
    /// if there is a hold of this name: one of two holders would settle that of the other.
    pub fn grant<R: Rule>(
        &mut self,
        rule: &R,
        state: &R::State,
        now: Timestamp,
        id: u64,
        units: u64,
        ttl: Micros,
    ) -> Option<Hold> {
        let left = self.assess(rule, rule.refresh(state, now), now, Cost::ZERO).remaining;
        let units = units.min(left);
        let is_known = self.0.iter().any(|hold| hold.id == id);
        if units == 0 || self.0.len() >= Self::MAX || is_known {
            return None;
        }
        let until = (now + ttl).min(rule.last_instant(state, now)).max(now);
        let hold = Hold { id, units, until };
        let place = self.0.iter().take_while(|other| other.until <= until).count();
        self.0.insert(place, hold);
        Some(hold)
    }

    /// Settles a hold of which `used` units were spent, and charges those now. Says whether
    /// there was such a hold: what has lapsed was charged in full.
    pub fn settle<R: Rule>(
        &mut self,
        rule: &R,
        state: &mut R::State,
        now: Timestamp,
        id: u64,
        used: u64,
    ) -> bool {
        let Some(place) = self.0.iter().position(|hold| hold.id == id) else { return false };
        let hold = self.0.remove(place);
        let used = used.min(hold.units);
        if used > 0 {
            rule.owe(state, used, now);
        }
        true
    }

    /// How long until a key with this state cannot be told from one never used, if nothing
    /// happens any more.
    pub fn fresh_after<R: Rule>(&self, rule: &R, state: &R::State, now: Timestamp) -> Micros {
        let Some(last) = self.0.last() else {
            return rule.assess(rule.refresh(state, now), now, Cost::ZERO).reset_after;
        };
        let (end, mut holds, mut state) = (last.until, self.clone(), state.clone());
        holds.lapse_first(self.0.len(), rule, &mut state);
        let after = rule.assess(rule.refresh(&state, end), end, Cost::ZERO).reset_after;
        (end + after).since(now)
    }
}
