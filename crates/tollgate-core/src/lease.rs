//! Leases: blocks of units that replicas may spend without calling the store, and how a key
//! accounts for them.
//!
//! A replica that may spend units on its own has a [`Hold`] on these units until some instant. A
//! key consists of its algorithm's state and its [`Holds`]. The construction is the same for all
//! algorithms and uses only the methods of [`Rule`]:
//!
//! * An **open** hold counts as if all its units were charged now: a request for `c` units is
//!   assessed as a request for `c` plus all open holds.
//! * A **lapsed** hold is charged at its last instant ([`Holds::lapse`]).
//! * A **settled** hold is removed, and the units spent from it are charged at the instant of
//!   settling.
//!
//! So each unit counts at the latest instant at which it may have been spent.
//!
//! # Why no limit is ever exceeded
//!
//! Let `t` be an instant at which a held unit is spent, and `g ≤ t` the last instant at which the
//! store granted any units. Take any span that finishes at `t`, and the units spent in it. Charges
//! were recorded at their own instants. Units from holds that were settled or had lapsed by `g`
//! were charged later than they were spent, but not later than `g`. All other holds were open at
//! `g` and counted in full. So the units spent in the span are at most the units counted at `g`,
//! and with these the limit held at `g`.
//!
//! * A log and a counter count spans that reach back a window from `t`. By `t`, some of the units
//!   counted at `g` may be forgotten, but never more than a decision at `t` forgets.
//! * A bucket's level is the maximum, over all spans that finish at `t`, of the charges in the span
//!   minus the drain. A charge recorded later also drains later.
//! * A counter must not move units into the next window, so a hold expires with its window
//!   ([`Rule::last_instant`]).
//!
//! The argument requires that charging later never leads to more room later. This does not hold for
//! a queue, where the instant decides about other requests' turns, or for a bucket that refills in
//! intervals, where a charge can start an interval.
//! [`Policy::with_lease`](crate::Policy::with_lease) rejects both.

use core::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Rule;
use crate::{Cost, Decision, Micros, Outcome, Timestamp};

/// The quota share that a replica may hold and spend without calling the store.
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
    /// The shortest time to live for leased units. Less than a few round trips is not useful.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// Leases up to `numerator / denominator` of the capacity to each replica at a time, for one
    /// second.
    pub const fn of(numerator: u32, denominator: u32) -> Self {
        Self { numerator, denominator, ttl: Micros::new(1_000_000) }
    }

    /// Sets the time to live for leased units. Units neither spent nor returned by then are lost to
    /// the quota.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Returns the time to live for leased units.
    pub const fn time_to_live(&self) -> Micros {
        self.ttl
    }

    /// Returns the largest number of units that a replica may hold at a time, at least 1.
    pub fn units(&self, capacity: u64) -> u64 {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        let units = u128::from(capacity) * numerator / denominator.max(1);
        u64::try_from(units).unwrap_or(capacity).clamp(1, capacity)
    }

    /// Whether this is a valid share: more than 0 and at most 1.
    pub(crate) const fn is_share(&self) -> bool {
        self.numerator > 0 && self.numerator <= self.denominator
    }

    /// Returns the quota share as numerator and denominator, not reduced.
    pub const fn share(&self) -> (u32, u32) {
        (self.numerator, self.denominator)
    }
}

/// A twentieth of the capacity, for one second.
impl Default for Lease {
    fn default() -> Self {
        Self::of(1, 20)
    }
}

/// A block of units that a replica may spend without calling the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The block's ID, unique among the key's blocks.
    pub id: u64,
    /// The number of units in the block.
    pub units: u64,
    /// The last instant at which units from the block may be spent.
    pub until: Timestamp,
}

/// A store's answer to a request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The units that may be spent from now on. Zero means that no block was granted.
    pub units: u64,
    /// The time from now to the last instant at which the units may be spent.
    pub lasts: Micros,
    /// The units that remain after subtracting all blocks.
    pub remaining: u64,
    /// The shortest time until the entire quota is available again.
    pub reset_after: Micros,
    /// The time until a unit becomes available, if no unit was granted.
    pub retry_after: Micros,
}

/// A key's open blocks, ordered by expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(SmallVec<[Hold; 2]>);

impl Holds {
    /// The maximum number of open blocks per key. Further replicas get no block.
    pub const MAX: usize = 64;

    /// Returns whether the key has no open block.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the open blocks, ordered by expiry.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter()
    }

    /// Returns the total number of units in all open blocks.
    pub fn units(&self) -> u64 {
        self.0.iter().map(|hold| hold.units).sum()
    }

    /// Charges the blocks that expired before `now`, each at its last instant. The other methods
    /// expect this to have been called.
    pub fn lapse<R: Rule>(&mut self, rule: &R, state: &mut R::State, now: Timestamp) {
        let lapsed = self.0.iter().take_while(|hold| hold.until < now).count();
        self.lapse_first(lapsed, rule, state);
    }

    fn lapse_first<R: Rule>(&mut self, count: usize, rule: &R, state: &mut R::State) {
        for hold in self.0.drain(..count) {
            // A block that fitted when it was granted still fits, unless a debt was made since.
            // Then the sum stays within the debt's bound.
            rule.owe(state, hold.units, hold.until);
        }
    }

    /// Decides on `cost` in addition to the open blocks. Changes no state.
    ///
    /// `retry_after` assumes that no unit is returned. If units are returned, the request is
    /// allowed earlier. For a sliding window counter it is slightly late, because the holds age
    /// too. If only the holds deny the request, it is the expiry of the first hold and may be too
    /// early. `reset_after` counts holds as spent now.
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
            // A request for zero units never waits, regardless of the remaining units.
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

    /// Grants up to `units` for `ttl`, limited to the remaining units, and returns the block.
    /// Returns `None` if the key already has a block with this ID, because one holder would then
    /// settle the other holder's block.
    pub fn grant<R: Rule>(
        &mut self,
        rule: &R,
        state: &R::State,
        now: Timestamp,
        id: u64,
        units: u64,
        ttl: Micros,
    ) -> Option<Hold> {
        let assessed = self.assess(rule, rule.refresh(state, now), now, Cost::ZERO);
        // Requests that queue have taken instants after now, so these units are not spent now.
        let is_ahead = assessed.leaves_at(now).is_some_and(|leaves_at| leaves_at > now);
        let units = if is_ahead { 0 } else { units.min(assessed.remaining) };
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

    /// Settles a block by charging the `used` units now. Returns whether the key still had the
    /// block; a block that had expired was already charged in full.
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

    /// Returns the time until the entire quota is available again if no more requests arrive.
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
