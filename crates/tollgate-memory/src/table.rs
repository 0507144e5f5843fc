//! The keys for a policy in a shard.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Cost, Decision, Key, Policy, Timestamp};

/// The keys for a policy in a shard, each stored next to its state, so a decision touches a single
/// cache line in addition to the table's control bytes.
#[derive(Debug)]
pub(crate) struct Table<R: Rule> {
    pub(crate) policy: Policy,
    pub(crate) rule: R,
    entries: HashTable<Entry<R::State>>,
    /// The bucket at which the next sweep starts.
    cursor: usize,
    /// The largest number of bytes that the entries may use outside the table.
    promised: usize,
}

#[derive(Debug)]
struct Entry<S> {
    key: Key,
    state: S,
}

/// How many buckets each insertion checks for removal. With four, the entire table has been checked
/// before a quarter of it is new.
const SWEEP: usize = 4;

/// The reason that a bucket cannot be empty.
const FOUND: &str = "a bucket is used under the lock under which it was found";

impl<R: Rule> Table<R> {
    pub(crate) fn new(policy: Policy, rule: R) -> Self {
        Self { policy, rule, entries: HashTable::new(), cursor: 0, promised: 0 }
    }

    /// Returns a key's bucket, valid until the table changes.
    #[inline]
    pub(crate) fn bucket(&self, hash: u64, key: &Key) -> Option<usize> {
        self.entries.find_bucket_index(hash, |entry| entry.key == *key)
    }

    /// Charges the key in a bucket with a `cost` that was assessed as allowed.
    #[inline(always)]
    pub(crate) fn charge(&mut self, bucket: usize, cost: Cost, now: Timestamp) {
        let entry = self.entries.get_bucket_mut(bucket).expect(FOUND);
        self.rule.charge(&mut entry.state, now, cost);
    }

    /// Returns the decision on `cost` for the key in a bucket, without charging it.
    #[inline(always)]
    pub(crate) fn assess(&self, bucket: usize, cost: Cost, now: Timestamp) -> Decision {
        let entry = self.entries.get_bucket(bucket).expect(FOUND);
        self.rule.assess(self.rule.refresh(&entry.state, now), now, cost)
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<&R::State> {
        self.entries.find(hash, |entry| entry.key == *key).map(|entry| &entry.state)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, key: &Key) -> Option<&mut R::State> {
        self.entries.find_mut(hash, |entry| entry.key == *key).map(|entry| &mut entry.state)
    }

    /// Inserts a key that is not in the table yet.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        state: R::State,
        now: Timestamp,
        hasher: &RandomState,
    ) {
        self.sweep(SWEEP, now);
        if self.entries.len() == self.entries.capacity() {
            // Growing the table visits every entry, so remove expired keys first.
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

    /// Checks the next `buckets` buckets and removes keys that are as good as unused.
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

    /// Frees memory if more than three quarters of the table is empty. The table retains twice the space
    /// that its keys need, so it rarely has to shrink or grow again.
    pub(crate) fn shrink(&mut self, hasher: &RandomState) {
        if self.entries.len() < self.entries.capacity() / 4 {
            let keep = 2 * self.entries.len();
            self.entries.shrink_to(keep, |entry| hasher.hash_one(&entry.key));
            self.cursor = 0;
        }
    }

    /// Removes all keys that are as good as unused.
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

    /// Returns the bytes in use, plus the largest possible growth of the states.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.promised
    }

    /// Returns the bytes that another key would take after `reserved` other keys. A full table
    /// doubles. An empty table starts with four entries and a group of control bytes, for which
    /// eight entries are a safe upper bound.
    pub(crate) fn bytes_of_one_more(&self, key: &Key, reserved: usize) -> usize {
        let growth = self.entries.allocation_size().max(8 * size_of::<Entry<R::State>>());
        let is_full = self.entries.len() + reserved >= self.entries.capacity();
        self.promise(key) + if is_full { growth } else { 0 }
    }

    /// Returns the largest number of bytes that a key and its state may use outside the table.
    fn promise(&self, key: &Key) -> usize {
        self.rule.max_heap_bytes() + key.heap_bytes()
    }
}
