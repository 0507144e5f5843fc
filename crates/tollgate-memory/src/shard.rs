//! A part of the keys, with its own lock and bounds.

use foldhash::fast::RandomState;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Receipt, Timestamp, with_rule};

use crate::any_table::StoredRule;
use crate::policy_tables::{EntryKey, PolicyTables, StateLocation};
use crate::versions::Change;

/// A part of the keys, with its own lock and bounds.
///
/// Keys without room share one overflow entry per policy. While that entry is live, a new key that
/// does find room starts with a copy of its state. Otherwise, a client already counted in the
/// overflow entry would get a new quota. A known key that is charged under another version of its
/// quota, and has no room for this version's state, uses the overflow entry too. Each shard has its
/// own overflow entries, so a flood of keys does not contend for a common lock, and a full shard
/// does not affect new keys in other shards.
#[derive(Debug)]
pub(crate) struct Shard {
    /// The time of the last operation.
    last: Timestamp,
    pub(crate) own: PolicyTables,
    shared: PolicyTables,
    bounds: Bounds,
    /// The room that the current request has reserved for new states.
    reserved: Bounds,
    /// The number of these states. Some belong to keys that leave another table.
    reserved_states: usize,
    /// The number of charges so far that found no room.
    pub(crate) overflowed: u64,
}

/// A shard's maximum size, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
}

/// A key's entry under a policy, found for the current request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    entry_key: EntryKey<'a>,
    location: StateLocation,
    /// Whether this is the overflow entry.
    shared: bool,
    /// The key, if it has a state under another version but uses the overflow entry.
    known: Option<EntryKey<'a>>,
}

/// The key under which overflow entries are stored.
static SHARED: Key = Key::GLOBAL;

/// How many buckets are checked for removal when the shard is full. This bounds how long a request
/// with a new key holds the lock.
const SWEEP_WHEN_FULL: usize = 32;

impl Shard {
    pub(crate) fn new(bounds: Bounds, hasher: &RandomState) -> Self {
        let tables = || PolicyTables::new(hasher.clone());
        Self {
            last: Timestamp::EPOCH,
            own: tables(),
            shared: tables(),
            bounds,
            reserved: Bounds::default(),
            reserved_states: 0,
            overflowed: 0,
        }
    }

    /// Whether the last operation was after `read`.
    #[inline(always)]
    pub(crate) fn is_after(&self, read: Timestamp) -> bool {
        self.last > read
    }

    /// Begins an operation. `now` was read under the lock, or no operation was after it.
    #[inline(always)]
    pub(crate) const fn enter(&mut self, now: Timestamp) {
        self.last = now;
    }

    /// Finds the entry for a charge's key, or the place for a new entry. `charges` are all charges
    /// in the request.
    pub(crate) fn seat<'a>(
        &mut self,
        charge: &Charge<'a>,
        hash: u64,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Seat<'a> {
        let Charge { policy, key, .. } = *charge;
        let entry_key = EntryKey { policy, key, hash, table: self.own.table(policy, charges) };
        let mut location = self.own.find(entry_key);
        if let StateLocation::Moved { from } = location
            && self.own.forget_unneeded(from, entry_key, now)
        {
            // The result must be the same as if this key had already been swept.
            location = StateLocation::New;
        }
        // Check all overflow entries for removal. There are few.
        self.shared.sweep(usize::MAX, now);
        let has_state = location == StateLocation::Here || self.has_version(entry_key);
        let is_new = location == StateLocation::New;
        // A known key may need room for another state.
        let fits = has_state
            || (is_new || !self.may_have_overflowed(policy))
                && self.makes_room(entry_key, location, now);
        if fits {
            if !has_state {
                self.reserve(entry_key, location);
            }
            return Seat { entry_key, location, shared: false, known: None };
        }
        self.overflowed += u64::from(charge.cost > Cost::ZERO);
        let known = (!is_new).then_some(entry_key);
        let table = self.shared.table(policy, charges);
        let entry_key = EntryKey { policy, key: &SHARED, hash: self.shared.hash(&SHARED), table };
        Seat { entry_key, location: self.shared.find(entry_key), shared: true, known }
    }

    /// Decides a charge to a key without a state, and reserves room for the state. Returns `None`,
    /// without a change, if the charge needs a [seat](Self::seat).
    pub(crate) fn assess_new(
        &mut self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(usize, Decision)> {
        let Charge { policy, key, cost, .. } = *charge;
        let table = self.own.known_table(policy)?;
        let entry_key = EntryKey { policy, key, hash, table };
        let location = self.own.find(entry_key);
        // A live overflow entry may count the key's earlier charges.
        let is_unused = location == StateLocation::New && self.shared.keys() == 0;
        if !is_unused || !self.has_room(entry_key, location) {
            return None;
        }
        self.reserve(entry_key, location);
        let decision = with_rule!(policy.rule(), rule => {
            rule.assess(rule.refresh(&rule.fresh(), now), now, cost)
        });
        Some((table, decision))
    }

    /// Makes a charge to a key without a state that was assessed as allowed.
    pub(crate) fn charge_new(
        &mut self,
        table: usize,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) {
        let Charge { policy, key, cost, .. } = *charge;
        let entry_key = EntryKey { policy, key, hash, table };
        with_rule!(policy.rule(), rule => self.own.put_charged(rule, entry_key, cost, now));
    }

    fn reserve(&mut self, entry_key: EntryKey<'_>, location: StateLocation) {
        self.reserved.keys += usize::from(location == StateLocation::New);
        self.reserved.bytes += self.own.bytes_of(entry_key, location, self.reserved_states);
        self.reserved_states += 1;
    }

    /// Clears the current request's reservations.
    pub(crate) fn finish(&mut self) {
        (self.reserved, self.reserved_states) = (Bounds::default(), 0);
    }

    /// Whether a key has several versions, and this version is one of them.
    fn has_version(&self, entry_key: EntryKey<'_>) -> bool {
        self.own.versions(entry_key).is_some_and(|entry| entry.has_version(entry_key.policy))
    }

    /// Whether a known key without a state under this version may have been charged in the overflow
    /// entry, when there was no room for another state. It stays there while the entry is live,
    /// because its other states do not count these charges.
    fn may_have_overflowed(&self, policy: &Policy) -> bool {
        // All versions of a concurrency limit share a state.
        !policy.is_concurrency() && self.shared.knows(policy, self.shared.hash(&SHARED), &SHARED)
    }

    /// Whether there is room for the state, removing expired keys first if necessary.
    fn makes_room(
        &mut self,
        entry_key: EntryKey<'_>,
        location: StateLocation,
        now: Timestamp,
    ) -> bool {
        if !self.has_room(entry_key, location) {
            self.own.sweep(SWEEP_WHEN_FULL, now);
            self.own.shrink();
        }
        self.has_room(entry_key, location)
    }

    fn has_room(&self, entry_key: EntryKey<'_>, location: StateLocation) -> bool {
        let keys = usize::from(location == StateLocation::New);
        self.own.keys() + self.reserved.keys + keys <= self.bounds.keys
            && self.own.bytes()
                + self.reserved.bytes
                + self.own.bytes_of(entry_key, location, self.reserved_states)
                <= self.bounds.bytes
    }

    /// Returns the version of the policy under which a debt is charged, if the key has its own
    /// state: the current version, or the version under which it has been charged.
    pub(crate) fn debtor<'a>(&'a self, seat: &Seat<'a>, now: Timestamp) -> Option<&'a Policy> {
        let policy = seat.entry_key.policy;
        match seat.location {
            _ if seat.shared => None,
            StateLocation::Here => Some(policy),
            StateLocation::Moved { from } => self.own.live_version(from, seat.entry_key, now),
            StateLocation::Versions => {
                self.own.versions(seat.entry_key).map(|entry| entry.debtor(policy, now))
            }
            StateLocation::New => None,
        }
    }

    /// Whether the receipt's charge can be told apart from other charges. In an overflow entry only
    /// permits can, because permits with the same expiry are interchangeable.
    pub(crate) fn identifies(&self, seat: &Seat<'_>, receipt: &Receipt) -> bool {
        let charged_at = receipt.charged.charged_at;
        let in_flight = receipt.policy.is_concurrency();
        let tables = self.tables(seat);
        match seat.location {
            _ if seat.shared && !in_flight => false,
            StateLocation::Here => {
                tables.identifies(seat.entry_key.table, seat.entry_key, charged_at)
            }
            StateLocation::Moved { from } => tables.identifies(from, seat.entry_key, charged_at),
            // Each version decides for itself.
            StateLocation::Versions => true,
            StateLocation::New => false,
        }
    }

    /// Forgets a key's charges. Earlier receipts become void.
    pub(crate) fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        self.own.reset(policy, key, now);
    }

    /// Returns the decision that would be made on `cost` at `at`, without charging it.
    pub(crate) fn assess(
        &self,
        seat: &Seat<'_>,
        cost: Cost,
        at: Timestamp,
        now: Timestamp,
    ) -> Decision {
        with_rule!(seat.entry_key.policy.rule(), rule => self.assess_as(rule, seat, cost, at, now))
    }

    fn assess_as<R: StoredRule>(
        &self,
        rule: &R,
        seat: &Seat<'_>,
        cost: Cost,
        at: Timestamp,
        now: Timestamp,
    ) -> Decision {
        let assess = |state: &R::State| rule.assess(rule.refresh(state, at), at, cost);
        match self.tables(seat).state::<R>(seat.entry_key) {
            Some(state) => assess(state),
            None => assess(&self.inherited_state(rule, seat, now)),
        }
    }

    /// Charges a cost that was assessed as allowed at `at`, and counts from `charged_at` on.
    pub(crate) fn charge(
        &mut self,
        seat: &Seat<'_>,
        cost: Cost,
        (at, charged_at): (Timestamp, Timestamp),
        now: Timestamp,
    ) {
        if let Some(known) = seat.known {
            // Once the overflow entry is unused, this charge could not be told apart from charges
            // in the key's own states.
            self.own.void(known, now.max(charged_at));
        }
        self.change(seat, Change::Charge(cost, at), now);
    }

    /// Adds a strike to a penalty.
    pub(crate) fn strike(&mut self, seat: &Seat<'_>, now: Timestamp) {
        self.change(seat, Change::Owe(1), now);
    }

    /// Changes a key's state. Returns the number of units charged or refunded.
    pub(crate) fn change(&mut self, seat: &Seat<'_>, change: Change, now: Timestamp) -> u64 {
        let Seat { entry_key, location, .. } = *seat;
        let policy = entry_key.policy;
        let has_versions = match location {
            StateLocation::Here | StateLocation::New => false,
            StateLocation::Moved { .. } => !policy.is_concurrency(),
            StateLocation::Versions => true,
        };
        if has_versions
            && let Some(units) =
                self.tables_mut(seat).change_versions(entry_key, location, change, now)
        {
            return units;
        }
        with_rule!(policy.rule(), rule => {
            let (units, restarts) = self.change_with(rule, seat, now, |state| {
                (change.apply(rule, state, now), rule.restart_refunds(state))
            });
            if restarts {
                self.tables_mut(seat).void(entry_key, now);
            }
            units
        })
    }

    /// Changes a key's state in its policy's table, where it is inserted if necessary.
    pub(crate) fn change_with<R: StoredRule, T>(
        &mut self,
        rule: &R,
        seat: &Seat<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut R::State) -> T,
    ) -> T {
        // If the state has been swept since it was found, the key is new.
        if let Some(state) = self.tables_mut(seat).state_mut::<R>(seat.entry_key) {
            return change(state);
        }
        let mut state = self.inherited_state(rule, seat, now);
        let result = change(&mut state);
        self.tables_mut(seat).put::<R>(seat.entry_key, seat.location, state, now);
        result
    }

    /// Returns the state for a key that is not in its policy's table: converted from another
    /// version, copied from the overflow entry, or unused.
    fn inherited_state<R: StoredRule>(
        &self,
        rule: &R,
        seat: &Seat<'_>,
        now: Timestamp,
    ) -> R::State {
        let EntryKey { policy, key, hash, .. } = seat.entry_key;
        let found = self.tables(seat).read(rule, policy, hash, key, now);
        let shared = || self.shared.read(rule, policy, self.shared.hash(&SHARED), &SHARED, now);
        found.or_else(shared).unwrap_or_else(|| rule.fresh())
    }

    fn tables(&self, seat: &Seat<'_>) -> &PolicyTables {
        if seat.shared { &self.shared } else { &self.own }
    }

    fn tables_mut(&mut self, seat: &Seat<'_>) -> &mut PolicyTables {
        if seat.shared { &mut self.shared } else { &mut self.own }
    }
}

impl Seat<'_> {
    /// Whether the entry belongs only to this key.
    pub(crate) const fn is_own(&self) -> bool {
        !self.shared
    }

    /// Whether both are the same overflow entry. Any other entry appears at most once per request.
    pub(crate) fn shares_entry_with(&self, other: &Self) -> bool {
        self.shared && other.shared && self.entry_key.policy.name() == other.entry_key.policy.name()
    }
}
