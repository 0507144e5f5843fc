//! Tables of several policies, and where a key is among them.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Timestamp};

use crate::any_table::{AnyTable, Kind, with_table};

/// One table per policy, because each algorithm has its own type of state. A policy whose quota
/// changed has one table per version, and a key moves to the new table with its next charge.
#[derive(Debug)]
pub(crate) struct Part {
    tables: Vec<AnyTable>,
    /// For each table its policy's name hash, side by side for a fast search.
    names: Vec<u64>,
    hasher: RandomState,
}

/// A key under a policy, with the table of that policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) key: &'a Key,
    pub(crate) hash: u64,
    /// The table of the policy.
    pub(crate) table: usize,
}

/// Where the state of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the table of its policy.
    Here,
    /// In the table of another version of its policy.
    Moved {
        /// That table.
        from: usize,
    },
    /// Nowhere yet.
    New,
}

impl Part {
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self { tables: Vec::new(), names: Vec::new(), hasher }
    }

    /// The table of `policy`, if there is one.
    ///
    /// The search compares name hashes first, so it mostly compares a single policy. Addresses would
    /// not do: a reload builds equal policies at other addresses, and each layer of a store can have
    /// its own copy.
    #[inline]
    pub(crate) fn known_table(&self, policy: &Policy) -> Option<usize> {
        let name = policy.name_hash();
        let mut named = self.names.iter().enumerate().filter(|(_, other)| **other == name);
        let found = named.find(|(index, _)| is_of(&self.tables[*index], policy));
        found.map(|(index, _)| index)
    }

    /// The table of `policy`, created if necessary. A new table replaces an empty table that
    /// `charges` do not use.
    pub(crate) fn table(&mut self, policy: &Policy, charges: &[Charge<'_>]) -> usize {
        if let Some(index) = self.known_table(policy) {
            return index;
        }
        let idle = |table: &AnyTable| {
            let used = |charge: &Charge<'_>| table.policy().shares_state_with(charge.policy);
            table.len() == 0 && !charges.iter().any(used)
        };
        if let Some(index) = self.tables.iter().position(idle) {
            self.tables[index] = AnyTable::new(policy);
            self.names[index] = policy.name_hash();
            index
        } else {
            self.tables.push(AnyTable::new(policy));
            self.names.push(policy.name_hash());
            self.tables.len() - 1
        }
    }

    /// The bucket of a key in the table of its policy, valid until the table changes.
    #[inline]
    pub(crate) fn bucket(&self, table: usize, hash: u64, key: &Key) -> Option<usize> {
        with_table!(&self.tables[table], table => table.bucket(hash, key))
    }

    /// Decides on the key in a bucket, and charges it if `cost` may pass.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        table: usize,
        bucket: usize,
        cost: Cost,
        now: Timestamp,
    ) -> Decision {
        with_table!(&mut self.tables[table], table => table.decide(bucket, cost, now))
    }

    /// The decision on `cost` for the key in a bucket, without a charge.
    #[inline]
    pub(crate) fn assess(
        &self,
        table: usize,
        bucket: usize,
        cost: Cost,
        now: Timestamp,
    ) -> Decision {
        with_table!(&self.tables[table], table => table.assess(bucket, cost, now))
    }

    /// Where the state of a key is.
    pub(crate) fn find(&self, spot: Spot<'_>) -> Place {
        let contains = |table: &AnyTable| table.contains(spot.hash, spot.key);
        if contains(&self.tables[spot.table]) {
            return Place::Here;
        }
        let version = |table: &AnyTable| table.policy().name() == spot.policy.name();
        match self.tables.iter().position(|table| version(table) && contains(table)) {
            Some(from) => Place::Moved { from },
            None => Place::New,
        }
    }

    /// The state of a key in the table of its policy.
    pub(crate) fn state<R: Kind>(&self, spot: Spot<'_>) -> Option<&R::State> {
        R::table(&self.tables[spot.table])?.find(spot.hash, spot.key)
    }

    /// The state of a key in the table of its policy, to change it.
    #[inline]
    pub(crate) fn state_mut<R: Kind>(&mut self, spot: Spot<'_>) -> Option<&mut R::State> {
        R::table_mut(&mut self.tables[spot.table])?.find_mut(spot.hash, spot.key)
    }

    /// The state of a key under any version of its policy, as `rule` reads it.
    pub(crate) fn read<R: Kind>(
        &self,
        rule: &R,
        policy: &Policy,
        hash: u64,
        key: &Key,
        now: Timestamp,
    ) -> Option<R::State> {
        let versions = self.tables.iter().filter(|table| table.policy().name() == policy.name());
        versions.into_iter().find_map(|table| table.read_as(rule, hash, key, now))
    }

    /// Inserts the state of a key into the table of its policy, and removes the key from the table
    /// of another version.
    pub(crate) fn put<R: Kind>(
        &mut self,
        spot: Spot<'_>,
        place: Place,
        state: R::State,
        now: Timestamp,
    ) {
        if let Place::Moved { from } = place {
            self.tables[from].remove(spot.hash, spot.key);
        }
        if let Some(table) = R::table_mut(&mut self.tables[spot.table]) {
            table.insert(spot.hash, spot.key.clone(), state, now, &self.hasher);
        }
    }

    /// Forgets a key under all versions of a policy.
    pub(crate) fn forget(&mut self, policy: &Policy, key: &Key) {
        let hash = self.hasher.hash_one(key);
        for table in self.tables.iter_mut().filter(|table| table.policy().name() == policy.name()) {
            table.remove(hash, key);
        }
    }

    /// Whether the state of a key in this table equals that of an unused key.
    pub(crate) fn is_fresh(&self, table: usize, spot: Spot<'_>, now: Timestamp) -> bool {
        self.tables[table].is_fresh(spot.hash, spot.key, now)
    }

    /// Forgets a key in this table.
    pub(crate) fn forget_in(&mut self, table: usize, spot: Spot<'_>) {
        self.tables[table].remove(spot.hash, spot.key);
    }

    /// Checks the next `buckets` buckets of each table and removes keys that are as good as unused.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        for table in &mut self.tables {
            table.sweep(buckets, now);
        }
    }

    /// Frees the memory of tables that are mostly empty.
    pub(crate) fn shrink(&mut self) {
        for table in &mut self.tables {
            table.shrink(&self.hasher);
        }
    }

    /// The policy of a table.
    pub(crate) fn policy(&self, table: usize) -> &Policy {
        self.tables[table].policy()
    }

    /// A hash of key and policy name, the same for all versions of the policy.
    pub(crate) fn slot(&self, policy: &Policy, key: &Key) -> u64 {
        self.hasher.hash_one((policy.name(), key))
    }

    pub(crate) fn keys(&self) -> usize {
        self.tables.iter().map(AnyTable::len).sum()
    }

    /// The bytes in use, plus the largest possible growth of the states.
    pub(crate) fn bytes(&self) -> usize {
        self.tables.iter().map(AnyTable::bytes).sum()
    }

    /// Bytes that the key would take if it were added.
    pub(crate) fn bytes_of(&self, spot: Spot<'_>) -> usize {
        with_table!(&self.tables[spot.table], table => table.bytes_of_one_more(spot.key))
    }

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }
}

/// Whether a table has the states of this policy.
#[inline]
fn is_of(table: &AnyTable, policy: &Policy) -> bool {
    #[cfg(test)]
    tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
    table.policy().shares_state_with(policy)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tollgate_core::{Cost, Key, Quota};

    use super::*;

    thread_local! {
        /// The number of policies that were compared in this thread.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn policy(number: u64) -> Policy {
        Policy::token_bucket(format!("p{number}"), Quota::per_minute(10)).unwrap()
    }

    #[test]
    fn equal_policies_find_their_table_at_once() {
        let mut part = Part::new(RandomState::default());
        let policies: Vec<_> = (0..30).map(policy).collect();
        let charge = |policy| Charge::new(policy, &Key::GLOBAL, Cost::ONE);
        // Tables of these charges are not replaced, although they are empty.
        let charges: Vec<_> = policies.iter().map(charge).collect();
        let tables: Vec<_> = policies.iter().map(|it| part.table(it, &charges)).collect();
        assert_eq!(tables, (0..30).collect::<Vec<_>>());
        // As after a reload: equal policies at other addresses.
        for (number, table) in (0..30).zip(tables) {
            COMPARED.set(0);
            assert_eq!(part.known_table(&policy(number)), Some(table));
            assert_eq!(COMPARED.get(), 1, "policy {number}");
        }
        COMPARED.set(0);
        assert_eq!(part.known_table(&policy(30)), None);
        assert_eq!(COMPARED.get(), 0);
        let other_quota = Policy::token_bucket("p7", Quota::per_minute(11)).unwrap();
        assert_eq!(part.known_table(&other_quota), None);
    }

    #[test]
    fn a_replaced_table_has_its_new_name() {
        let mut part = Part::new(RandomState::default());
        let first = part.table(&policy(1), &[]);
        assert_eq!(part.table(&policy(2), &[]), first, "an empty table is replaced");
        assert_eq!(part.known_table(&policy(1)), None);
        assert_eq!(part.known_table(&policy(2)), Some(first));
    }
}
