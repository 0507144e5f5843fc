//! One part of the keys, behind one lock.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Timestamp};

use crate::any_table::{AnyTable, Kind, with_table};
use crate::settled::Settled;

/// One part of the keys: a table for each policy, as each algorithm keeps another
/// state. A policy whose quota changed has a table for each version, and a key moves
/// from one to the other when it is next charged.
#[derive(Debug)]
pub(crate) struct Shard {
    tables: Vec<AnyTable>,
    pub(crate) settled: Settled,
    bounds: Bounds,
    hasher: RandomState,
    /// New keys of the request at hand, which have been promised room.
    coming: usize,
}

/// What a shard may hold at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
    pub(crate) receipts: usize,
}

/// A key under a policy, and where that looks in a shard.
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
    /// Nowhere yet, and there is room for it.
    New,
    /// Nowhere, and there is no room.
    Full,
}

/// Buckets of each table looked at for something to forget when the shard is full. It
/// bounds what each request of a flood of new keys costs the others behind the lock.
const SWEEP_WHEN_FULL: usize = 32;

impl Shard {
    pub(crate) fn new(bounds: Bounds, hasher: RandomState) -> Self {
        let settled = Settled::new(bounds.receipts);
        Self {
            tables: Vec::new(),
            settled,
            bounds,
            hasher,
            coming: 0,
        }
    }

    /// The table of `policy`, found by the address of the policy. That is nearly always
    /// enough, and costs a comparison of pointers per policy.
    #[inline]
    pub(crate) fn known_table(&self, policy: &Policy) -> Option<usize> {
        self.tables
            .iter()
            .position(|table| table.policy().is_same(policy))
    }

    /// The table of `policy`, if it has one.
    pub(crate) fn existing_table(&self, policy: &Policy) -> Option<usize> {
        let by_value = |table: &AnyTable| table.policy().shares_state_with(policy);
        self.known_table(policy)
            .or_else(|| self.tables.iter().position(by_value))
    }

    /// The table of `policy`, made if there is none. A new one takes the place of one
    /// that has emptied, unless `charges` are about to use that.
    pub(crate) fn table(&mut self, policy: &Policy, charges: &[Charge<'_>]) -> usize {
        if let Some(index) = self.existing_table(policy) {
            return index;
        }
        let idle = |table: &AnyTable| {
            let used = |charge: &Charge<'_>| table.policy().shares_state_with(charge.policy);
            table.len() == 0 && !charges.iter().any(used)
        };
        if let Some(index) = self.tables.iter().position(idle) {
            self.tables[index] = AnyTable::new(policy);
            index
        } else {
            self.tables.push(AnyTable::new(policy));
            self.tables.len() - 1
        }
    }

    /// Decides on a key that is in the table of its policy, and charges it if `cost`
    /// may pass: the path of nearly every request.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        table: usize,
        hash: u64,
        key: &Key,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Decision> {
        with_table!(&mut self.tables[table], table => table.decide(hash, key, cost, now))
    }

    /// Where the state of a key is, or would go.
    pub(crate) fn place(&mut self, spot: Spot<'_>, now: Timestamp) -> Place {
        let found = self.find(spot);
        if found != Place::New {
            return found;
        }
        if !self.has_room(spot) {
            self.sweep(SWEEP_WHEN_FULL, now);
            if !self.has_room(spot) {
                return Place::Full;
            }
        }
        self.coming += 1;
        Place::New
    }

    /// Where the state of a key is; `New` if nowhere.
    pub(crate) fn find(&self, spot: Spot<'_>) -> Place {
        let contains = |table: &AnyTable| table.contains(spot.hash, spot.key);
        if self.tables[spot.table]
            .policy()
            .shares_state_with(spot.policy)
            && contains(&self.tables[spot.table])
        {
            return Place::Here;
        }
        let moved =
            |table: &AnyTable| table.policy().name() == spot.policy.name() && contains(table);
        match self.tables.iter().position(moved) {
            Some(from) => Place::Moved { from },
            None => Place::New,
        }
    }

    fn has_room(&self, spot: Spot<'_>) -> bool {
        let more =
            with_table!(&self.tables[spot.table], table => table.bytes_of_one_more(spot.key));
        self.keys() + self.coming < self.bounds.keys && self.bytes() + more <= self.bounds.bytes
    }

    /// The request at hand has got what it was promised.
    pub(crate) fn finish(&mut self) {
        self.coming = 0;
    }

    /// The state of a key in the table of its policy.
    pub(crate) fn state<R: Kind>(&self, spot: Spot<'_>) -> Option<&R::State> {
        R::table(&self.tables[spot.table])?.find(spot.hash, spot.key)
    }

    /// The state of a key in the table of its policy, to change it.
    pub(crate) fn state_mut<R: Kind>(&mut self, spot: Spot<'_>) -> Option<&mut R::State> {
        R::table_mut(&mut self.tables[spot.table])?.find_mut(spot.hash, spot.key)
    }

    /// The state of a key that has [`Place::Moved`], as `rule` reads it.
    pub(crate) fn moved<R: Kind>(
        &self,
        rule: &R,
        from: usize,
        spot: Spot<'_>,
        now: Timestamp,
    ) -> Option<R::State> {
        self.tables[from].read_as(rule, spot.hash, spot.key, now)
    }

    /// The state of the entry that all keys of a policy share, as `rule` reads it: what
    /// the shard of overflow entries is asked for.
    pub(crate) fn shared<R: Kind>(
        &self,
        rule: &R,
        policy: &Policy,
        now: Timestamp,
    ) -> Option<R::State> {
        let hash = self.hasher.hash_one(&Key::GLOBAL);
        let versions = self
            .tables
            .iter()
            .filter(|table| table.policy().name() == policy.name());
        versions
            .into_iter()
            .find_map(|table| table.read_as(rule, hash, &Key::GLOBAL, now))
    }

    /// Puts the state of a key into the table of its policy, where it is not yet, and
    /// takes it out of that of another version.
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
    pub(crate) fn forget(&mut self, policy: &Policy, hash: u64, key: &Key) {
        for table in self
            .tables
            .iter_mut()
            .filter(|table| table.policy().name() == policy.name())
        {
            table.remove(hash, key);
        }
    }

    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        for table in &mut self.tables {
            table.sweep(buckets, now);
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.tables.iter().map(AnyTable::len).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tables.iter().map(AnyTable::bytes).sum()
    }
}
