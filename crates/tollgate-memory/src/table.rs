//! The keys of one policy within one shard.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Cost, Decision, Key, Policy, Timestamp};

/// The keys of one policy within one shard, with their states beside them: finding a
/// key and deciding on it touches one cache line besides the table's control bytes.
#[derive(Debug)]
pub(crate) struct Table<R: Rule> {
    pub(crate) policy: Policy,
    pub(crate) rule: R,
    entries: HashTable<Entry<R::State>>,
    /// Where the sweep goes on.
    cursor: usize,
    /// Bytes that entries hold, or may come to hold, outside the table.
    promised: usize,
}

#[derive(Debug)]
struct Entry<S> {
    key: Key,
    state: S,
}

/// Buckets that each insertion looks at for something to forget. With four, a table
/// has been looked through once before a quarter of it is new.
const SWEEP: usize = 4;

impl<R: Rule> Table<R> {
    pub(crate) fn new(policy: Policy, rule: R) -> Self {
        Self { policy, rule, entries: HashTable::new(), cursor: 0, promised: 0 }
    }

    /// Decides on a key that is here, and charges it if `cost` may pass.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        hash: u64,
        key: &Key,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Decision> {
        let entry = self.entries.find_mut(hash, |entry| entry.key == *key)?;
        let decision = self.rule.assess(self.rule.refresh(&entry.state, now), now, cost);
        if decision.allows() && cost > Cost::ZERO {
            self.rule.charge(&mut entry.state, now, cost);
        }
        Some(decision)
    }

    /// Charges a key that is here what was assessed as allowed.
    #[inline]
    pub(crate) fn charge(&mut self, hash: u64, key: &Key, cost: Cost, now: Timestamp) {
        if cost > Cost::ZERO
            && let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key)
        {
            self.rule.charge(&mut entry.state, now, cost);
        }
    }

    /// What the policy says about `cost` for a key that is here.
    #[inline]
    pub(crate) fn assess(
        &self,
        hash: u64,
        key: &Key,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Decision> {
        let state = self.find(hash, key)?;
        Some(self.rule.assess(self.rule.refresh(state, now), now, cost))
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<&R::State> {
        self.entries.find(hash, |entry| entry.key == *key).map(|entry| &entry.state)
    }

    pub(crate) fn find_mut(&mut self, hash: u64, key: &Key) -> Option<&mut R::State> {
        self.entries.find_mut(hash, |entry| entry.key == *key).map(|entry| &mut entry.state)
    }

    /// Adds a key that is not here yet.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        state: R::State,
        now: Timestamp,
        hasher: &RandomState,
    ) {
        self.sweep(SWEEP, now);
        if self.is_at_capacity() {
            // Growing costs a pass over everything, so first see what can go.
            self.forget_fresh(now);
        }
        self.promised += self.promise(&key);
        self.entries.insert_unique(hash, Entry { key, state }, |entry| hasher.hash_one(&entry.key));
    }

    pub(crate) fn remove(&mut self, hash: u64, key: &Key) {
        if let Ok(entry) = self.entries.find_entry(hash, |entry| entry.key == *key) {
            let (Entry { key, .. }, _) = entry.remove();
            self.promised -= self.promise(&key);
        }
    }

    /// Looks at the next `buckets` buckets and forgets the keys in them that cannot be
    /// told from fresh ones.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        let end = self.entries.num_buckets();
        for _ in 0..buckets.min(end) {
            self.cursor = if self.cursor + 1 < end { self.cursor + 1 } else { 0 };
            let Ok(entry) = self.entries.get_bucket_entry(self.cursor) else {
                continue;
            };
            if self.rule.is_fresh(&entry.get().state, now) {
                let (Entry { key, .. }, _) = entry.remove();
                self.promised -= self.promise(&key);
            }
        }
    }

    /// Gives back room if three quarters of it are empty, keeping as much again as is
    /// used: so it happens once per so many keys that went.
    pub(crate) fn shrink(&mut self, hasher: &RandomState) {
        if self.entries.len() < self.entries.capacity() / 4 {
            let keep = 2 * self.entries.len();
            self.entries.shrink_to(keep, |entry| hasher.hash_one(&entry.key));
            self.cursor = 0;
        }
    }

    /// Forgets all keys that cannot be told from fresh ones.
    fn forget_fresh(&mut self, now: Timestamp) {
        let Self { entries, rule, promised, .. } = self;
        let per_state = rule.max_heap_bytes();
        entries.retain(|entry| {
            let keep = !rule.is_fresh(&entry.state, now);
            if !keep {
                *promised -= per_state + entry.key.heap_bytes();
            }
            keep
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held or promised.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.promised
    }

    /// Bytes that one more key would take. A full table doubles; an empty one begins
    /// with four entries and a group of control bytes, for which eight are enough.
    pub(crate) fn bytes_of_one_more(&self, key: &Key) -> usize {
        let growth = self.entries.allocation_size().max(8 * size_of::<Entry<R::State>>());
        self.promise(key) + if self.is_at_capacity() { growth } else { 0 }
    }

    fn is_at_capacity(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    /// What a key may come to hold outside the table.
    fn promise(&self, key: &Key) -> usize {
        self.rule.max_heap_bytes() + key.heap_bytes()
    }
}
