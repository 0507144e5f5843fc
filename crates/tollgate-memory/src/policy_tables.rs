//! Tables for several policies, and where to find a key in them.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Timestamp};

use crate::any_table::{AnyTable, StoredRule, with_table};
use crate::table::{Place, Written};
use crate::versions::{Change, KeyVersions, Versions, heap_bytes};

/// One table per policy, with all the policy's quotas. If its algorithm changes, each algorithm has
/// a table, because each has its own state type. A key that is charged under another version of the
/// policy while its state still counts moves to `versions`.
#[derive(Debug)]
pub(crate) struct PolicyTables {
    tables: Vec<AnyTable>,
    /// The hashes of the tables' names, contiguous for a fast search.
    names: Vec<u64>,
    versions: Versions,
    hasher: RandomState,
}

/// A key under a policy, with the policy's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryKey<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) key: &'a Key,
    pub(crate) hash: u64,
    /// The index of the policy's table.
    pub(crate) table: usize,
}

/// A known key's place in a policy's table, valid until the table changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TablePlace {
    table: usize,
    place: Place,
}

/// Where a key's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateLocation {
    /// In its policy's table.
    Here,
    /// In a table, under another version.
    Moved {
        /// The table's index.
        from: usize,
    },
    /// With a state for each version.
    Versions,
    /// The key has no state yet.
    New,
}

impl PolicyTables {
    pub(crate) fn new(hasher: RandomState) -> Self {
        let (tables, names) = (Vec::new(), Vec::new());
        Self { tables, names, versions: Versions::default(), hasher }
    }

    /// Returns the table for `policy`, if there is one.
    ///
    /// The search compares name hashes first, so it usually compares only a single name.
    #[inline(always)]
    pub(crate) fn known_table(&self, policy: &Policy) -> Option<usize> {
        let name = policy.name_hash();
        // The compiler would call an iterator's closure instead of inlining it.
        for (index, other) in self.names.iter().enumerate() {
            if *other == name && self.is_of(index, policy) {
                return Some(index);
            }
        }
        None
    }

    /// Whether a table has this policy's states.
    #[inline(always)]
    fn is_of(&self, table: usize, policy: &Policy) -> bool {
        #[cfg(test)]
        tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
        self.tables[table].main().has_states_like(policy)
    }

    /// Returns the table for `policy`, creating it if necessary. A new table replaces an empty
    /// table that is not used by `charges`.
    pub(crate) fn table(&mut self, policy: &Policy, charges: &[Charge<'_>]) -> usize {
        if let Some(index) = self.known_table(policy) {
            return index;
        }
        let idle = |index: &usize| {
            let used = |charge: &Charge<'_>| self.is_of(*index, charge.policy);
            self.tables[*index].len() == 0 && !charges.iter().any(used)
        };
        let (table, name) = (AnyTable::new(policy), policy.name_hash());
        if let Some(index) = (0..self.tables.len()).find(idle) {
            (self.tables[index], self.names[index]) = (table, name);
            return index;
        }
        self.tables.push(table);
        self.names.push(name);
        self.tables.len() - 1
    }

    /// Decides a charge to a known key, and makes it if it is allowed.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<Decision> {
        let table = self.known_table(charge.policy)?;
        with_table!(&mut self.tables[table], table => table.decide(charge, hash, now))
    }

    /// Decides a charge to a known key without making it.
    #[inline(always)]
    pub(crate) fn assess(
        &self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(TablePlace, Decision)> {
        let table = self.known_table(charge.policy)?;
        let found = with_table!(&self.tables[table], table => table.assess(charge, hash, now));
        let (place, decision) = found?;
        Some((TablePlace { table, place }, decision))
    }

    /// Makes a charge that was assessed as allowed.
    #[inline(always)]
    pub(crate) fn charge(&mut self, at: TablePlace, charge: &Charge<'_>, now: Timestamp) {
        with_table!(&mut self.tables[at.table], table => table.charge(at.place, charge, now));
    }

    /// Returns the tables for a policy's versions.
    fn tables_of(&self, policy: &Policy) -> impl Iterator<Item = (usize, &AnyTable)> {
        self.tables.iter().enumerate().filter(|(_, table)| table.main().is_version_of(policy))
    }

    /// Where a key's state is.
    pub(crate) fn find(&self, entry_key: EntryKey<'_>) -> StateLocation {
        let EntryKey { policy, key, hash, .. } = entry_key;
        if self.versions.find(hash, key, policy).is_some() {
            return StateLocation::Versions;
        }
        for (from, table) in self.tables_of(policy) {
            let Some(version) = table.version_of(hash, key) else { continue };
            let is_own = version.shares_state_with(policy);
            return if is_own { StateLocation::Here } else { StateLocation::Moved { from } };
        }
        StateLocation::New
    }

    /// Whether a key has a state under any version of a policy.
    pub(crate) fn knows(&self, policy: &Policy, hash: u64, key: &Key) -> bool {
        self.versions.find(hash, key, policy).is_some()
            || self.tables_of(policy).any(|(_, table)| table.version_of(hash, key).is_some())
    }

    /// Returns a key's state in its policy's table.
    pub(crate) fn state<R: StoredRule>(&self, entry_key: EntryKey<'_>) -> Option<&R::State> {
        let EntryKey { policy, key, hash, table } = entry_key;
        R::table(&self.tables[table])?.find(hash, key, policy)
    }

    /// Returns a key's state in its policy's table, mutably.
    #[inline]
    pub(crate) fn state_mut<R: StoredRule>(
        &mut self,
        entry_key: EntryKey<'_>,
    ) -> Option<&mut R::State> {
        let EntryKey { policy, key, hash, table } = entry_key;
        R::table_mut(&mut self.tables[table])?.find_mut(hash, key, policy)
    }

    /// Returns a key's state under any version of its policy, converted to `rule`.
    pub(crate) fn read<R: StoredRule>(
        &self,
        rule: &R,
        policy: &Policy,
        hash: u64,
        key: &Key,
        now: Timestamp,
    ) -> Option<R::State> {
        if let Some(entry) = self.versions.find(hash, key, policy) {
            return Some(entry.read(rule, policy, now));
        }
        self.tables_of(policy)
            .find_map(|(_, table)| with_table!(table, table => table.read_as(rule, hash, key, now)))
    }

    /// Inserts a key's state into its policy's table. Permits leave another version's table.
    pub(crate) fn put<R: StoredRule>(
        &mut self,
        entry_key: EntryKey<'_>,
        location: StateLocation,
        state: R::State,
        now: Timestamp,
    ) {
        let EntryKey { policy, key, hash, table } = entry_key;
        let old = match location {
            StateLocation::Moved { from } => self.tables[from].take(hash, key),
            _ => None,
        };
        let since = old.map_or(now, |old| old.since);
        if let Some(table) = R::table_mut(&mut self.tables[table]) {
            let written = Written { policy: policy.clone(), state, since };
            table.insert(hash, key.clone(), written, now, &self.hasher);
        }
    }

    /// Inserts a new key into its policy's table, with a single charge.
    pub(crate) fn put_charged<R: StoredRule>(
        &mut self,
        rule: &R,
        entry_key: EntryKey<'_>,
        cost: Cost,
        now: Timestamp,
    ) {
        let mut state = rule.fresh();
        rule.charge(&mut state, now, cost);
        self.put::<R>(entry_key, StateLocation::New, state, now);
    }

    /// Changes a key's versions, after moving the key there from another version's table. `None`
    /// if the key has a single version.
    pub(crate) fn change_versions(
        &mut self,
        entry_key: EntryKey<'_>,
        location: StateLocation,
        change: Change,
        now: Timestamp,
    ) -> Option<u64> {
        let EntryKey { policy, key, hash, .. } = entry_key;
        if let StateLocation::Moved { from } = location
            && let Some(old) = self.tables[from].take(hash, key)
        {
            self.versions.insert(hash, key.clone(), old, &self.hasher);
        }
        self.versions.change(hash, key, policy, change, now)
    }

    /// Returns a key's versions, if it has several.
    pub(crate) fn versions(&self, entry_key: EntryKey<'_>) -> Option<&KeyVersions> {
        self.versions.find(entry_key.hash, entry_key.key, entry_key.policy)
    }

    /// Forgets a key's charges under all policies of this name.
    pub(crate) fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        let hash = self.hasher.hash_one(key);
        for table in &mut self.tables {
            if table.main().name() == policy.name() {
                with_table!(table, table => table.reset(hash, key, now));
            }
        }
        self.versions.reset(hash, key, policy, now);
    }

    /// Whether a table can tell apart a charge made at `charged_at`.
    pub(crate) fn identifies(
        &self,
        table: usize,
        entry_key: EntryKey<'_>,
        charged_at: Timestamp,
    ) -> bool {
        let EntryKey { key, hash, .. } = entry_key;
        with_table!(&self.tables[table], table => table.identifies(hash, key, charged_at))
    }

    /// Makes receipts for charges up to `now` void, under all versions of a policy.
    pub(crate) fn void(&mut self, entry_key: EntryKey<'_>, now: Timestamp) {
        let EntryKey { policy, key, hash, .. } = entry_key;
        for table in &mut self.tables {
            if table.main().is_version_of(policy) {
                with_table!(table, table => table.void(hash, key, now));
            }
        }
        self.versions.void(hash, key, policy, now);
    }

    /// Forgets a key that this table does not need any more. Returns whether it did.
    pub(crate) fn forget_unneeded(
        &mut self,
        table: usize,
        entry_key: EntryKey<'_>,
        now: Timestamp,
    ) -> bool {
        let EntryKey { key, hash, .. } = entry_key;
        let is_unneeded = with_table!(&self.tables[table], it => it.may_forget(hash, key, now));
        if is_unneeded {
            self.tables[table].take(hash, key);
        }
        is_unneeded
    }

    /// Checks the next `buckets` buckets, divided equally among the tables, and removes keys that are
    /// as good as unused.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        let each = buckets.div_ceil(self.tables.len().max(1));
        for table in &mut self.tables {
            with_table!(table, table => table.sweep(each, now));
        }
        self.versions.sweep(each, now);
    }

    /// Frees memory in tables that are mostly empty.
    pub(crate) fn shrink(&mut self) {
        for table in &mut self.tables {
            with_table!(table, table => table.shrink(&self.hasher));
        }
        self.versions.shrink(&self.hasher);
    }

    /// Returns the version under which a key's state in this table was written, unless the state
    /// equals an unused key's state.
    pub(crate) fn live_version(
        &self,
        table: usize,
        entry_key: EntryKey<'_>,
        now: Timestamp,
    ) -> Option<&Policy> {
        let EntryKey { key, hash, .. } = entry_key;
        with_table!(&self.tables[table], table => {
            table.version_of(hash, key).filter(|_| !table.is_fresh(hash, key, now))
        })
    }

    pub(crate) fn keys(&self) -> usize {
        self.tables.iter().map(AnyTable::len).sum::<usize>() + self.versions.len()
    }

    /// Returns the bytes in use, plus the largest possible growth of the states.
    pub(crate) fn bytes(&self) -> usize {
        self.tables.iter().map(AnyTable::bytes).sum::<usize>() + self.versions.bytes()
    }

    /// Returns the bytes that the key's state would take if it were added after `reserved` others.
    pub(crate) fn bytes_of(
        &self,
        entry_key: EntryKey<'_>,
        location: StateLocation,
        reserved: usize,
    ) -> usize {
        let EntryKey { policy, key, .. } = entry_key;
        match location {
            StateLocation::Versions => return heap_bytes(policy),
            StateLocation::Moved { .. } if !policy.is_concurrency() => {
                return heap_bytes(policy) + self.versions.bytes_of_one_more(key, reserved);
            }
            StateLocation::Here | StateLocation::Moved { .. } | StateLocation::New => {}
        }
        with_table!(&self.tables[entry_key.table], table => {
            table.bytes_of_one_more(policy, key, reserved)
        })
    }

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tollgate_core::{Cost, Key, Quota};

    use super::*;

    thread_local! {
        /// How many policies this thread has compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn policy(number: u64) -> Policy {
        Policy::token_bucket(format!("p{number}"), Quota::per_minute(10)).unwrap()
    }

    #[test]
    fn lookup_compares_only_one_policy() {
        let mut stored = PolicyTables::new(RandomState::default());
        let policies: Vec<_> = (0..30).map(policy).collect();
        let charge = |policy| Charge::new(policy, &Key::GLOBAL, Cost::ONE);
        // The tables for these charges are not replaced, even though they are empty.
        let charges: Vec<_> = policies.iter().map(charge).collect();
        let tables: Vec<_> = policies.iter().map(|it| stored.table(it, &charges)).collect();
        assert_eq!(tables, (0..30).collect::<Vec<_>>());
        // Like after a reload: equal policies at different addresses.
        for (number, table) in (0..30).zip(tables) {
            COMPARED.set(0);
            assert_eq!(stored.known_table(&policy(number)), Some(table));
            assert_eq!(COMPARED.get(), 1, "policy {number}");
        }
        COMPARED.set(0);
        assert_eq!(stored.known_table(&policy(30)), None);
        assert_eq!(COMPARED.get(), 0);
        let other_quota = Policy::token_bucket("p7", Quota::per_minute(11)).unwrap();
        assert_eq!(stored.known_table(&other_quota), Some(7));
        let other_algorithm = Policy::fixed_window_counter("p7", Quota::per_minute(10)).unwrap();
        assert_eq!(stored.known_table(&other_algorithm), None);
    }

    #[test]
    fn replaced_table_has_new_name() {
        let mut stored = PolicyTables::new(RandomState::default());
        let first = stored.table(&policy(1), &[]);
        assert_eq!(stored.table(&policy(2), &[]), first, "an empty table is replaced");
        assert_eq!(stored.known_table(&policy(1)), None);
        assert_eq!(stored.known_table(&policy(2)), Some(first));
    }
}
