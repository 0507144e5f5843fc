//! The most denied clients: a bounded summary of an unbounded stream.
//!
//! Space-saving (Metwally, Agrawal and El Abbadi 2005) maintains `k` counters. A new key replaces
//! the key with the smallest count, which becomes the new key's possible error. A key with more
//! than `n / k` of `n` events is always among the `k`. Counts are never too small, and exceed the
//! true count by at most their error. Maintained crates only provide sketches that forget at
//! random, which could lose such a key.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::{Duration, Instant};

use tollgate_core::Key;

use crate::key::SubjectKind;

#[derive(Debug)]
pub(super) struct Top {
    current: Summary<(Key, SubjectKind)>,
    previous: Summary<(Key, SubjectKind)>,
    started: Instant,
}

/// A client that a policy denied, with the number of denials in the last 10 to 20 minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedClient {
    /// The client's key.
    pub key: Key,
    /// The kind of identity behind the key.
    pub kind: SubjectKind,
    /// The number of denials.
    pub count: u64,
    /// The largest possible error of `count`, which is never too small.
    pub error: u64,
}

const SUBJECTS: usize = 128;

const SPAN: Duration = Duration::from_secs(600);

impl Top {
    pub(super) fn new(now: Instant) -> Self {
        let summary = || Summary::new(SUBJECTS);
        Self { current: summary(), previous: summary(), started: now }
    }

    pub(super) fn count(&mut self, key: Key, kind: SubjectKind, now: Instant) {
        self.rotate(now);
        self.current.count((key, kind));
    }

    /// Returns all known clients. Sums over several policies may be in a different order.
    pub(super) fn read(&mut self, now: Instant) -> Vec<DeniedClient> {
        self.rotate(now);
        let denied = |((key, kind), count, error): (&(Key, SubjectKind), u64, u64)| DeniedClient {
            key: key.clone(),
            kind: *kind,
            count,
            error,
        };
        let both = [&self.current, &self.previous];
        both.into_iter().flat_map(Summary::iter).map(denied).collect()
    }

    fn rotate(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.started);
        if passed < SPAN {
            return;
        }
        let last = mem::replace(&mut self.current, Summary::new(SUBJECTS));
        self.previous = if passed < 2 * SPAN { last } else { Summary::new(SUBJECTS) };
        self.started = now;
    }
}

pub(super) fn sum(all: impl IntoIterator<Item = DeniedClient>, max: usize) -> Vec<DeniedClient> {
    let mut sums: HashMap<(Key, SubjectKind), (u64, u64)> = HashMap::new();
    for DeniedClient { key, kind, count, error } in all {
        let sum = sums.entry((key, kind)).or_default();
        *sum = (sum.0 + count, sum.1 + error);
    }
    let sums = sums.into_iter();
    let mut all: Vec<_> = sums
        .map(|((key, kind), (count, error))| DeniedClient { key, kind, count, error })
        .collect();
    all.sort_by(|a, b| {
        let by_count = b.count.cmp(&a.count).then(a.error.cmp(&b.error));
        // Orders clients with equal counts by key, so the result is stable.
        by_count.then_with(|| a.key.as_bytes().cmp(&*b.key.as_bytes()))
    });
    all.truncate(max);
    all
}

/// The counts for up to `bound` keys, with their errors.
#[derive(Debug)]
struct Summary<K> {
    bound: usize,
    counts: HashMap<K, (u64, u64)>,
}

impl<K: Clone + Eq + Hash> Summary<K> {
    fn new(bound: usize) -> Self {
        Self { bound, counts: HashMap::new() }
    }

    fn count(&mut self, key: K) {
        if let Some((count, _)) = self.counts.get_mut(&key) {
            *count += 1;
            return;
        }
        let mut error = 0;
        if self.counts.len() >= self.bound {
            let smallest = self.counts.iter().min_by_key(|(_, (count, _))| *count);
            let Some((smallest, (count, _))) = smallest.map(|(key, it)| (key.clone(), *it)) else {
                return;
            };
            self.counts.remove(&smallest);
            error = count;
        }
        self.counts.insert(key, (error + 1, error));
    }

    fn iter(&self) -> impl Iterator<Item = (&K, u64, u64)> {
        self.counts.iter().map(|(key, (count, error))| (key, *count, *error))
    }
}

#[cfg(test)]
mod tests;
