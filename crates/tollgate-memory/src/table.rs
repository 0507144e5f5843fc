//! The keys for a policy in a shard.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Cost, Decision, Key, Micros, Timestamp};

/// The keys for a policy in a shard, each stored next to its state, so a decision touches a single
/// cache line in addition to the table's control bytes.
#[derive(Debug)]
pub(crate) struct Table<R: Rule> {
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
    /// Charges before this instant cannot be told apart from others, so they are not refunded: the
    /// key was new then, or has been reset since.
    since: Timestamp,
}

/// The smallest step in time.
pub(crate) const NEXT: Micros = Micros::new(1);

/// How many buckets each insertion checks for removal. With four, the entire table has been checked
/// before a quarter of it is new.
const SWEEP: usize = 4;

/// The reason that a bucket cannot be empty.
const FOUND: &str = "a bucket is used under the lock under which it was found";

impl<R: Rule> Table<R> {
    pub(crate) fn new(rule: R) -> Self {
        Self { rule, entries: HashTable::new(), cursor: 0, promised: 0 }
    }

    /// Decides on a known key, and charges it if `cost` is allowed.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        hash: u64,
        key: &Key,
        cost: Cost,
        now: Timestamp,
    ) -> Option<Decision> {
        let Self { rule, entries, .. } = self;
        let Entry { state, .. } = entries.find_mut(hash, |entry| entry.key == *key)?;
        let decision = rule.assess(rule.refresh(state, now), now, cost);
        if decision.allows() && cost > Cost::ZERO {
            rule.charge(state, now, cost);
        }
        Some(decision)
    }

    /// Charges the key in a bucket with a `cost` that was assessed as allowed.
    #[inline(always)]
    pub(crate) fn charge(&mut self, bucket: usize, cost: Cost, now: Timestamp) {
        let entry = self.entries.get_bucket_mut(bucket).expect(FOUND);
        self.rule.charge(&mut entry.state, now, cost);
    }

    /// Returns a known key's bucket, which is valid until the table changes, and the decision on
    /// `cost`, without charging it.
    #[inline(always)]
    pub(crate) fn assess(
        &self,
        hash: u64,
        key: &Key,
        cost: Cost,
        now: Timestamp,
    ) -> Option<(usize, Decision)> {
        let bucket = self.entries.find_bucket_index(hash, |entry| entry.key == *key)?;
        let entry = self.entries.get_bucket(bucket).expect(FOUND);
        Some((bucket, self.rule.assess(self.rule.refresh(&entry.state, now), now, cost)))
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<&R::State> {
        self.entries.find(hash, |entry| entry.key == *key).map(|entry| &entry.state)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, key: &Key) -> Option<&mut R::State> {
        self.entries.find_mut(hash, |entry| entry.key == *key).map(|entry| &mut entry.state)
    }

    /// Whether a charge made at `charged_at` can be told apart from other charges to the key.
    pub(crate) fn identifies(&self, hash: u64, key: &Key, charged_at: Timestamp) -> bool {
        let entry = self.entries.find(hash, |entry| entry.key == *key);
        entry.is_some_and(|entry| entry.since <= charged_at)
    }

    /// Whether the table does not need the key any more.
    pub(crate) fn may_forget(&self, hash: u64, key: &Key, now: Timestamp) -> bool {
        let entry = self.entries.find(hash, |entry| entry.key == *key);
        entry.is_none_or(|entry| entry.may_forget(&self.rule, now))
    }

    /// Makes receipts for charges up to `now` void.
    pub(crate) fn void(&mut self, hash: u64, key: &Key, now: Timestamp) {
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key) {
            entry.since = entry.since.max(now + NEXT);
        }
    }

    /// Forgets a key's charges, and makes their receipts void. The next sweep removes the key.
    pub(crate) fn reset(&mut self, hash: u64, key: &Key, now: Timestamp) {
        self.void(hash, key, now);
        let fresh = self.rule.fresh();
        if let Some(state) = self.find_mut(hash, key) {
            *state = fresh;
        }
    }

    /// Inserts a key that is not in the table yet, with the instant of its first receipt.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        (state, since): (R::State, Timestamp),
        now: Timestamp,
        hasher: &RandomState,
    ) {
        self.sweep(SWEEP, now);
        if self.entries.len() == self.entries.capacity() {
            // Growing the table visits every entry, so remove expired keys first.
            self.forget_fresh(now);
        }
        self.promised += self.promise(&key);
        let entry = Entry { key, state, since };
        self.entries.insert_unique(hash, entry, |entry| hasher.hash_one(&entry.key));
    }

    /// Removes a key. Returns its state and the instant of its first receipt.
    pub(crate) fn take(&mut self, hash: u64, key: &Key) -> Option<(R::State, Timestamp)> {
        let entry = self.entries.find_entry(hash, |entry| entry.key == *key).ok()?;
        let (Entry { key, state, since }, _) = entry.remove();
        self.promised -= self.promise(&key);
        Some((state, since))
    }

    /// Checks the next `buckets` buckets and removes keys that are as good as unused.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        let end = self.entries.num_buckets();
        for _ in 0..buckets.min(end) {
            self.cursor = if self.cursor + 1 < end { self.cursor + 1 } else { 0 };
            let Ok(entry) = self.entries.get_bucket_entry(self.cursor) else {
                continue;
            };
            if entry.get().may_forget(&self.rule, now) {
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
            let keep = !entry.may_forget(rule, now);
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

impl<S> Entry<S> {
    /// Whether the key is as good as unused. After a reset, it also makes receipts void.
    fn may_forget<R: Rule<State = S>>(&self, rule: &R, now: Timestamp) -> bool {
        self.since <= now && rule.is_fresh(&self.state, now)
    }
}
