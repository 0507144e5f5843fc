//! Keys that were charged under several versions of their policy's quota.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tollgate_core::algorithm::{Rule, converted};
use tollgate_core::{Charged, Cost, Key, Micros, PenaltyBlock, Policy, Timestamp, with_rule};

use crate::any_table::{AnyState, StoredRule};
use crate::entries::NEXT;
use crate::table::Written;

/// Keys with a state for each version of their quota, which changed while the key had units that
/// counted: by a reload, a tier, or another build of the service beside this build.
///
/// Every charge counts under all versions, and each version decides by its own state. A key moves
/// here from its policy's table with the first charge under another version, and stays until all
/// its states are as good as unused. Most keys never do, so the tables stay small and fast.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    entries: HashTable<KeyVersions>,
    /// The bucket at which the next sweep starts.
    cursor: usize,
    /// The largest number of bytes that the entries may use outside the table.
    promised: usize,
}

/// A key's versions, oldest first, with at least one version.
#[derive(Debug)]
pub(crate) struct KeyVersions {
    key: Key,
    versions: SmallVec<[Version; 2]>,
}

/// A key's state under a version of its policy. Charges before `since` are not refunded. If the
/// version started from another one's state, neither are the other versions' charges at this
/// instant, because that state may already contain them.
type Version = Written<AnyState>;

/// A change to a key's state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A charge, and the instant from which it counts: later than now if the request queues.
    Charge(Cost, Timestamp),
    Owe(u64),
    GiveBack(Charged, u64),
    Block(PenaltyBlock),
}

/// The maximum number of versions per key. Another version replaces the oldest.
const MAX_VERSIONS: usize = 4;

impl Change {
    /// Changes the state under the version that the change names. Returns the number of units
    /// charged or refunded, or the microseconds for which the key is blocked.
    pub(crate) fn apply<R: Rule>(self, rule: &R, state: &mut R::State, now: Timestamp) -> u64 {
        match self {
            Self::Charge(cost, at) => {
                rule.charge(state, at, cost);
                cost.get()
            }
            Self::Owe(units) => rule.owe(state, units, now),
            Self::GiveBack(charged, units) => rule.give_back(state, &charged, units, now),
            Self::Block(block) => rule.block(state, block, now).map_or(0, Micros::get),
        }
    }
}

impl Versions {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.promised
    }

    pub(crate) fn find(&self, hash: u64, key: &Key, policy: &Policy) -> Option<&KeyVersions> {
        self.entries.find(hash, |entry| entry.is_of(key, policy))
    }

    /// Changes a key's states, see [`KeyVersions::change`]. `None` if the key is not here.
    pub(crate) fn change(
        &mut self,
        hash: u64,
        key: &Key,
        policy: &Policy,
        change: Change,
        now: Timestamp,
    ) -> Option<u64> {
        let entry = self.entries.find_mut(hash, |entry| entry.is_of(key, policy))?;
        let before = entry.promise();
        let units = entry.change(policy, change, now);
        self.promised = self.promised + entry.promise() - before;
        Some(units)
    }

    /// Forgets a key's charges under all policies of this name.
    pub(crate) fn reset(&mut self, hash: u64, key: &Key, policy: &Policy, now: Timestamp) {
        for entry in self.entries.iter_hash_mut(hash) {
            if entry.key == *key && entry.versions[0].policy.name() == policy.name() {
                let before = entry.promise();
                entry.reset(now);
                self.promised = self.promised + entry.promise() - before;
            }
        }
    }

    /// Makes receipts for a key's charges up to `now` void.
    pub(crate) fn void(&mut self, hash: u64, key: &Key, policy: &Policy, now: Timestamp) {
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.is_of(key, policy)) {
            for version in &mut entry.versions {
                version.since = version.since.max(now + NEXT);
            }
        }
    }

    /// Inserts a key that had this version until now.
    pub(crate) fn insert(&mut self, hash: u64, key: Key, first: Version, hasher: &RandomState) {
        let entry = KeyVersions { key, versions: SmallVec::from_iter([first]) };
        self.promised += entry.promise();
        self.entries.insert_unique(hash, entry, |entry| hasher.hash_one(&entry.key));
    }

    /// Returns the bytes that another key would take after `reserved` other keys.
    pub(crate) fn bytes_of_one_more(&self, key: &Key, reserved: usize) -> usize {
        let growth = self.entries.allocation_size().max(8 * size_of::<KeyVersions>());
        let is_full = self.entries.len() + reserved >= self.entries.capacity();
        SPILLED + key.heap_bytes() + if is_full { growth } else { 0 }
    }

    /// Checks the next `buckets` buckets and removes keys that are as good as unused.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        let end = self.entries.num_buckets();
        for _ in 0..buckets.min(end) {
            self.cursor = if self.cursor + 1 < end { self.cursor + 1 } else { 0 };
            if let Ok(entry) = self.entries.get_bucket_entry(self.cursor)
                && entry.get().may_forget(now)
            {
                self.promised -= entry.remove().0.promise();
            }
        }
    }

    pub(crate) fn shrink(&mut self, hasher: &RandomState) {
        if self.entries.len() < self.entries.capacity() / 4 {
            let keep = 2 * self.entries.len();
            self.entries.shrink_to(keep, |entry| hasher.hash_one(&entry.key));
            self.cursor = 0;
        }
    }
}

/// The bytes of a list with the maximum number of versions.
const SPILLED: usize = MAX_VERSIONS * size_of::<Version>();

/// Returns the maximum heap size of a state.
pub(crate) fn heap_bytes(policy: &Policy) -> usize {
    with_rule!(policy.rule(), rule => rule.max_heap_bytes())
}

impl KeyVersions {
    /// Returns the largest number of bytes that the entry may use outside the table.
    fn promise(&self) -> usize {
        let states = self.versions.iter().map(|version| heap_bytes(&version.policy));
        SPILLED + self.key.heap_bytes() + states.sum::<usize>()
    }

    fn is_of(&self, key: &Key, policy: &Policy) -> bool {
        self.key == *key && self.versions[0].policy.is_version_of(policy)
    }

    /// Whether the key has a state under this version.
    pub(crate) fn has_version(&self, policy: &Policy) -> bool {
        self.own(policy).is_some()
    }

    fn own(&self, policy: &Policy) -> Option<usize> {
        self.versions.iter().position(|version| version.policy.shares_state_with(policy))
    }

    /// The version from which a new version starts: the one that counts units for longest, and of
    /// several the one with room for most. It stays the same while time passes, and so do the waits
    /// that the new version tells.
    fn source(&self, now: Timestamp) -> Option<&Version> {
        let live = self.versions.iter().filter(|version| !version.is_fresh(now));
        live.rev().max_by_key(|version| (version.reset_after(now), version.policy.capacity()))
    }

    /// Returns the policy under which a debt is charged: the receipt's policy, if the key still has
    /// this version.
    pub(crate) fn debtor<'a>(&'a self, policy: &'a Policy, now: Timestamp) -> &'a Policy {
        match self.own(policy) {
            Some(_) => policy,
            None => self.source(now).map_or(policy, |version| &version.policy),
        }
    }

    /// Returns the state under `policy`: its own, a converted state, or an unused state.
    pub(crate) fn read<R: StoredRule>(
        &self,
        rule: &R,
        policy: &Policy,
        now: Timestamp,
    ) -> R::State {
        let own = self.own(policy).map(|index| &self.versions[index]);
        if let Some(state) = own.and_then(|version| rule.state(&version.state)) {
            return state.clone();
        }
        self.source(now).map_or_else(|| rule.fresh(), |version| version.read_as(rule))
    }

    /// Changes the state under `policy`, and counts the change under the other versions. A refund
    /// only corrects versions that can identify the charge. Returns the largest number of units
    /// refunded or charged under any version.
    fn change(&mut self, policy: &Policy, change: Change, now: Timestamp) -> u64 {
        let own = match change {
            Change::GiveBack(..) => self.own(policy),
            Change::Charge(..) | Change::Owe(_) | Change::Block(_) => Some(self.add(policy, now)),
        };
        let mut changed = 0;
        for (index, version) in self.versions.iter_mut().enumerate() {
            let is_own = own == Some(index);
            match change {
                // The oldest version did not start from another version.
                _ if !version.identifies(change, is_own || index == 0) => {}
                _ if is_own => changed = changed.max(version.change(change, now)),
                Change::Block(_) => {
                    version.change(change, now);
                }
                Change::GiveBack(charged, units) => {
                    let elsewhere = Change::GiveBack(charged.elsewhere(), units);
                    changed = changed.max(version.change(elsewhere, now));
                }
                Change::Charge(cost, at) => {
                    version.count(cost.get(), at);
                }
                Change::Owe(units) if version.count(units, now) => changed = units,
                Change::Owe(_) => {}
            }
        }
        changed
    }

    /// Returns the version for `policy`, added if necessary.
    fn add(&mut self, policy: &Policy, now: Timestamp) -> usize {
        // Receipts from before a reset at this instant must remain void.
        let voided = self.versions.iter().map(|version| version.since).fold(now, Timestamp::max);
        if self.source(now).is_none() {
            // The key may have been swept, so the other versions must make no difference.
            let own = self.own(policy).map(|index| self.versions.swap_remove(index));
            self.versions.clear();
            self.versions.extend(own);
        }
        if let Some(own) = self.own(policy) {
            return own;
        }
        let state =
            with_rule!(policy.rule(), rule => StoredRule::wrap(rule, self.read(rule, policy, now)));
        // A charge at the same instant as an earlier charge cannot be told apart. All versions count
        // all charges, but some do not know when the last one was.
        let after = |from: &Version| now.max(from.since + NEXT).max(from.counts_from() + NEXT);
        let since = match self.source(now) {
            Some(_) => self.versions.iter().map(after).fold(now, Timestamp::max),
            None => voided,
        };
        if self.versions.len() == MAX_VERSIONS {
            self.versions.remove(0);
        }
        let own = self.versions.len();
        self.versions.push(Version { policy: policy.clone(), state, since });
        own
    }

    /// Forgets all charges. Earlier receipts become void.
    pub(crate) fn reset(&mut self, now: Timestamp) {
        self.versions.truncate(1);
        for version in &mut self.versions {
            version.state =
                with_rule!(version.policy.rule(), rule => StoredRule::wrap(rule, rule.fresh()));
            version.since = version.since.max(now + NEXT);
        }
    }

    pub(crate) fn may_forget(&self, now: Timestamp) -> bool {
        self.versions.iter().all(|version| version.since <= now && version.is_fresh(now))
    }
}

/// Evaluates `$body` with the rule and the state in a [`Version`].
macro_rules! with_version {
    ($version:expr, $rule:ident, $state:ident => $body:expr) => {
        with_rule!($version.policy.rule(), $rule => {
            let $state = StoredRule::state_mut($rule, &mut $version.state);
            $state.map(|$state| $body)
        })
    };
}

impl Version {
    fn is_fresh(&self, now: Timestamp) -> bool {
        with_rule!(self.policy.rule(), rule => {
            StoredRule::state(rule, &self.state).is_none_or(|state| rule.is_fresh(state, now))
        })
    }

    fn reset_after(&self, now: Timestamp) -> Micros {
        with_rule!(self.policy.rule(), rule => {
            let state = StoredRule::state(rule, &self.state);
            state.map(|state| rule.assess(rule.refresh(state, now), now, Cost::ZERO).reset_after)
        })
        .unwrap_or_default()
    }

    fn counts_from(&self) -> Timestamp {
        with_rule!(self.policy.rule(), rule => {
            StoredRule::state(rule, &self.state).map(|state| rule.counts_from(state))
        })
        .unwrap_or_default()
    }

    fn read_as<R: StoredRule>(&self, rule: &R) -> R::State {
        with_rule!(self.policy.rule(), from => {
            StoredRule::state(from, &self.state).map(|state| converted(rule, from, state))
        })
        .unwrap_or_else(|| rule.fresh())
    }

    fn identifies(&self, change: Change, from_start: bool) -> bool {
        match change {
            Change::GiveBack(charged, _) if from_start => charged.charged_at >= self.since,
            Change::GiveBack(charged, _) => charged.charged_at > self.since,
            Change::Charge(..) | Change::Owe(_) | Change::Block(_) => true,
        }
    }

    fn change(&mut self, change: Change, now: Timestamp) -> u64 {
        let changed = with_version!(self, rule, state => {
            (change.apply(rule, state, now), rule.restart_refunds(state))
        });
        let (units, restarts) = changed.unwrap_or_default();
        if restarts {
            self.since = now + NEXT;
        }
        units
    }

    /// Counts units charged under another version. If there is no room for all of them, earlier
    /// charges can no longer be refunded.
    fn count(&mut self, units: u64, now: Timestamp) -> bool {
        let counted = with_version!(self, rule, state => rule.count(state, units, now));
        if counted != Some(true) {
            self.since = self.since.max(now + NEXT).max(self.counts_from() + NEXT);
        }
        counted == Some(true)
    }
}
