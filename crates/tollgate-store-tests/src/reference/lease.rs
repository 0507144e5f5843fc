//! How a key counts the blocks of units that replicas may spend without calling the store. The
//! steps of `lua/lease.lua` have the same names here. `lease.rs` in the core explains why no limit
//! is exceeded, and the core's `tests/suite/leases.rs` tests it under each algorithm.

use tollgate_core::algorithm::Rule;
use tollgate_core::{Cost, Decision, Micros, Outcome, Timestamp};

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

/// A key's open blocks, ordered by expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(Vec<Hold>);

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
