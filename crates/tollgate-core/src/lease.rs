//! Blocks of units that replicas may spend without calling the store: how a key counts them.
//!
//! A replica that may spend units out of sight of the store has a [`Hold`] of them until an
//! instant. A key has its state, as one of the algorithms keeps it, and its [`Holds`]. The
//! construction is one for all algorithms and uses only their verbs:
//!
//! * An **open** hold counts as if all of it were charged now: a request for `c` is assessed as a
//!   request for `c` and all open holds.
//! * A **lapsed** hold is charged at its last instant ([`Holds::lapse`]).
//! * A **settled** hold is gone, and its spent units are charged at the instant of settling.
//!
//! So each unit counts at the latest instant at which it may have been spent.
//!
//! # Why no limit is ever exceeded
//!
//! Let `t` be an instant at which a unit of a hold is spent, and `g ≤ t` the last instant at which
//! the store granted anything. Take any span that ends at `t`, and the units that were spent in it.
//! Charges were written at their instants. Units of holds that were settled or had lapsed by `g`
//! were charged later than they were spent and not later than `g`. All other holds were open at `g`
//! and counted in full. So the units spent in the span are at most the units that `g` counted in
//! it, and with these `g` kept the limit.
//!
//! * A log and a counter count spans that reach back a window from `t`. By `t` some of the units
//!   that `g` counted are forgotten, never more than in a decision at `t`.
//! * The level of a bucket is the maximum, over all spans that end at `t`, of the charges in the
//!   span less the drain. A later charge drains later.
//! * A counter must not find units of one window in the next: a hold ends with its window
//!   ([`Rule::last_instant`]).
//!
//! This needs an algorithm without more room later after a later charge. A queue and a bucket that
//! refills in intervals can have more room: there an instant decides about the turns of others, or
//! begins an interval. [`Policy::with_lease`](crate::Policy::with_lease) refuses both.

use core::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Rule;
use crate::{Cost, Decision, Micros, Outcome, Timestamp};

/// The share of a quota that a replica may hold, and spend without calling the store.
///
/// ```
/// use tollgate_core::{Lease, Policy, Quota};
///
/// let hot = Policy::token_bucket("hot", Quota::per_second(10_000))?.with_lease(Lease::of(1, 20))?;
/// # let _ = hot;
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    numerator: u32,
    denominator: u32,
    ttl: Micros,
}

impl Lease {
    /// The shortest time to live of leased units: less than a few round trips is of no use.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// Leases up to `numerator / denominator` of the capacity at a time to each replica, for a
    /// second.
    pub const fn of(numerator: u32, denominator: u32) -> Self {
        Self { numerator, denominator, ttl: Micros::new(1_000_000) }
    }

    /// Sets the time to live of leased units. Units that are not spent or returned by then are lost
    /// to the quota.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Returns the time to live of leased units.
    pub const fn time_to_live(&self) -> Micros {
        self.ttl
    }

    /// Returns the most units of a capacity that a replica holds at a time: at least one.
    pub fn units(&self, capacity: u64) -> u64 {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        let units = u128::from(capacity) * numerator / denominator.max(1);
        u64::try_from(units).unwrap_or(capacity).clamp(1, capacity)
    }

    /// The share, if it is one: more than nothing and at most the whole.
    pub(crate) const fn is_share(&self) -> bool {
        self.numerator > 0 && self.numerator <= self.denominator
    }

    /// Returns the share of the quota, as it was stated.
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

/// A block of units that a replica may spend without calling the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The name of the block, unique among the blocks of the key.
    pub id: u64,
    /// The number of units in the block.
    pub units: u64,
    /// The last instant at which a unit of the block may be spent.
    pub until: Timestamp,
}

/// The answer of a store to a request for a block of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The units that may be spent from now on. Zero means that no block was granted.
    pub units: u64,
    /// The time from now to the last instant at which the units may be spent.
    pub lasts: Micros,
    /// The units left beside all blocks.
    pub remaining: u64,
    /// The shortest time until the key equals an unused key.
    pub reset_after: Micros,
    /// The time until a unit would be left, if no unit was granted.
    pub retry_after: Micros,
}

/// The open blocks of a key, ordered by their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(SmallVec<[Hold; 2]>);

impl Holds {
    /// The most open blocks of a key. Later replicas get no block.
    pub const MAX: usize = 64;

    /// Returns whether the key has no open block.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the open blocks, ordered by their ends.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter()
    }

    /// Returns the units of all open blocks together.
    pub fn units(&self) -> u64 {
        self.0.iter().map(|hold| hold.units).sum()
    }

    /// Charges the blocks that ended before `now`, each at its last instant. The other methods
    /// expect this.
    pub fn lapse<R: Rule>(&mut self, rule: &R, state: &mut R::State, now: Timestamp) {
        let lapsed = self.0.iter().take_while(|hold| hold.until < now).count();
        self.lapse_first(lapsed, rule, state);
    }

    fn lapse_first<R: Rule>(&mut self, count: usize, rule: &R, state: &mut R::State) {
        for hold in self.0.drain(..count) {
            // A block that fitted at its grant still fits, unless a debt was made since; then the
            // sum stays within the bound of debts.
            rule.owe(state, hold.units, hold.until);
        }
    }

    /// Decides on `cost` beside the open blocks, and changes no state.
    ///
    /// `retry_after` assumes that no unit is returned; returns make it earlier. For a sliding
    /// window counter it is a little late, because the holds age too. If the holds alone deny the
    /// request, it is the end of the first hold, and may be too early. `reset_after` counts holds
    /// as spent now.
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

    /// Grants up to `units` for `ttl`, as many as are left, and returns the number. Grants none if
    /// the key has a block of this name: one of two holders would settle the block of the other.
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

    /// Settles a block of which `used` units were spent, and charges those now. Returns whether the
    /// key had the block: a block that ended was charged in full.
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

    /// Returns the time until a key with this state equals an unused key, if no request follows.
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
