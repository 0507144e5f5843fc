//! Keys with their states, in a hash table.

use std::any::Any;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Charge, Decision, Key, Micros, Policy, Timestamp, with_rule};

/// Keys, each stored next to its state, so a decision touches a single cache line in addition to the
/// table's control bytes.
///
/// `V` knows the version of the policy under which a key's state was written.
#[derive(Debug)]
pub(crate) struct Entries<S, V> {
    entries: HashTable<Entry<S, V>>,
    /// The bucket at which the next sweep starts.
    cursor: usize,
    /// The largest number of bytes that the entries may use outside the table.
    promised: usize,
}

#[derive(Debug)]
pub(crate) struct Entry<S, V> {
    key: Key,
    pub(crate) state: S,
    /// Charges before this instant cannot be told apart from others, so they are not refunded: the
    /// key was new then, or has been reset since.
    pub(crate) since: Timestamp,
    version: V,
}

/// The version of an entry, among entries most of which have a `main` version.
pub(crate) trait Version {
    fn policy<'a>(&'a self, main: &'a Policy) -> &'a Policy;

    /// Whether a charge under `policy` is under this version. For the main version, the caller has
    /// found out.
    fn is_charged(&self, policy: &Policy) -> bool;
}

/// The main version. It takes no room in an entry, and no handle to it is counted, because all
/// shards share it.
#[derive(Debug)]
pub(crate) struct Main;

impl Version for Main {
    #[inline(always)]
    fn policy<'a>(&'a self, main: &'a Policy) -> &'a Policy {
        main
    }

    #[inline(always)]
    fn is_charged(&self, _: &Policy) -> bool {
        true
    }
}

impl Version for Policy {
    #[inline(always)]
    fn policy<'a>(&'a self, _: &'a Policy) -> &'a Policy {
        self
    }

    #[inline(always)]
    fn is_charged(&self, policy: &Policy) -> bool {
        self.shares_state_with(policy)
    }
}

/// The smallest step in time.
pub(crate) const NEXT: Micros = Micros::new(1);

/// How many buckets each insertion checks for removal. With four, the entire table has been checked
/// before a quarter of it is new.
const SWEEP: usize = 4;

/// The reason that a bucket cannot be empty.
const FOUND: &str = "a bucket is used under the lock under which it was found";

impl<S, V: Version> Entries<S, V> {
    pub(crate) const fn new() -> Self {
        Self { entries: HashTable::new(), cursor: 0, promised: 0 }
    }

    /// Decides a charge to a key under the key's version, and makes the charge if it is allowed.
    #[inline(always)]
    pub(crate) fn decide<R: Rule<State = S>>(
        &mut self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<Decision> {
        let Charge { policy, key, cost, .. } = *charge;
        let rule = rule_of::<R>(policy)?;
        let entry = self.entries.find_mut(hash, |entry| entry.key == *key)?;
        if !entry.version.is_charged(policy) {
            return None;
        }
        Some(rule.take(&mut entry.state, now, cost))
    }

    /// Returns a key's bucket, which is valid until the entries change, and the decision on the
    /// charge, without making it.
    #[inline(always)]
    pub(crate) fn assess<R: Rule<State = S>>(
        &self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(usize, Decision)> {
        let Charge { policy, key, cost, .. } = *charge;
        let rule = rule_of::<R>(policy)?;
        let bucket = self.entries.find_bucket_index(hash, |entry| entry.key == *key)?;
        let entry = self.entries.get_bucket(bucket).expect(FOUND);
        let decision = || rule.assess(rule.refresh(&entry.state, now), now, cost);
        entry.version.is_charged(policy).then(|| (bucket, decision()))
    }

    /// Makes a charge to the key in a bucket that was assessed as allowed.
    #[inline(always)]
    pub(crate) fn charge<R: Rule<State = S>>(
        &mut self,
        bucket: usize,
        charge: &Charge<'_>,
        now: Timestamp,
    ) {
        let entry = self.entries.get_bucket_mut(bucket).expect(FOUND);
        if let Some(rule) = rule_of::<R>(charge.policy) {
            rule.charge(&mut entry.state, now, charge.cost);
        }
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &Key) -> Option<&Entry<S, V>> {
        self.entries.find(hash, |entry| entry.key == *key)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, key: &Key) -> Option<&mut Entry<S, V>> {
        self.entries.find_mut(hash, |entry| entry.key == *key)
    }

    /// Inserts a key that is not in the table yet, with the instant of its first receipt.
    pub(crate) fn insert<R: Rule<State = S>>(
        &mut self,
        hash: u64,
        key: Key,
        (state, since, version): (S, Timestamp, V),
        (main, now): (&Policy, Timestamp),
        hasher: &RandomState,
    ) {
        self.sweep::<R>(SWEEP, main, now);
        if self.entries.len() == self.entries.capacity() {
            // Growing the table visits every entry, so remove expired keys first.
            self.forget_fresh::<R>(main, now);
        }
        self.promised += promise::<R>(version.policy(main), &key);
        let entry = Entry { key, state, since, version };
        self.entries.insert_unique(hash, entry, |entry| hasher.hash_one(&entry.key));
    }

    /// Removes a key. Returns its state, the instant of its first receipt, and its version.
    pub(crate) fn take<R: Rule<State = S>>(
        &mut self,
        hash: u64,
        key: &Key,
        main: &Policy,
    ) -> Option<(S, Timestamp, V)> {
        let entry = self.entries.find_entry(hash, |entry| entry.key == *key).ok()?;
        let (Entry { key, state, since, version }, _) = entry.remove();
        self.promised -= promise::<R>(version.policy(main), &key);
        Some((state, since, version))
    }

    /// Checks the next `buckets` buckets and removes keys that are as good as unused.
    pub(crate) fn sweep<R: Rule<State = S>>(
        &mut self,
        buckets: usize,
        main: &Policy,
        now: Timestamp,
    ) {
        let end = self.entries.num_buckets();
        for _ in 0..buckets.min(end) {
            self.cursor = if self.cursor + 1 < end { self.cursor + 1 } else { 0 };
            let Ok(entry) = self.entries.get_bucket_entry(self.cursor) else {
                continue;
            };
            if entry.get().may_forget::<R>(main, now) {
                let (Entry { key, version, .. }, _) = entry.remove();
                self.promised -= promise::<R>(version.policy(main), &key);
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
    fn forget_fresh<R: Rule<State = S>>(&mut self, main: &Policy, now: Timestamp) {
        let Self { entries, promised, .. } = self;
        entries.retain(|entry| {
            let keep = !entry.may_forget::<R>(main, now);
            if !keep {
                *promised -= promise::<R>(entry.version.policy(main), &entry.key);
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
    pub(crate) fn bytes_of_one_more<R: Rule<State = S>>(
        &self,
        policy: &Policy,
        key: &Key,
        reserved: usize,
    ) -> usize {
        let growth = self.entries.allocation_size().max(8 * size_of::<Entry<S, V>>());
        let is_full = self.entries.len() + reserved >= self.entries.capacity();
        promise::<R>(policy, key) + if is_full { growth } else { 0 }
    }
}

impl<S, V: Version> Entry<S, V> {
    /// The version under which the state was written.
    pub(crate) fn version<'a>(&'a self, main: &'a Policy) -> &'a Policy {
        self.version.policy(main)
    }

    pub(crate) fn rule<'a, R: Rule<State = S>>(&'a self, main: &'a Policy) -> &'a R {
        rule_of(self.version.policy(main)).expect("a table's versions have its algorithm")
    }

    /// Whether the state equals an unused key's state.
    pub(crate) fn is_fresh<R: Rule<State = S>>(&self, main: &Policy, now: Timestamp) -> bool {
        self.rule::<R>(main).is_fresh(&self.state, now)
    }

    /// Whether the key is as good as unused. After a reset, it also makes receipts void.
    pub(crate) fn may_forget<R: Rule<State = S>>(&self, main: &Policy, now: Timestamp) -> bool {
        self.since <= now && self.is_fresh::<R>(main, now)
    }
}

/// Returns a policy's rule, if it is of this type.
#[inline(always)]
fn rule_of<R: Rule>(policy: &Policy) -> Option<&R> {
    with_rule!(policy.rule(), rule => (rule as &dyn Any).downcast_ref())
}

/// Returns the largest number of bytes that a key and its state may use outside the table.
fn promise<R: Rule>(policy: &Policy, key: &Key) -> usize {
    rule_of::<R>(policy).map_or(0, R::max_heap_bytes) + key.heap_bytes()
}
