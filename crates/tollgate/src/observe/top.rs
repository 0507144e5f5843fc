//! Who is denied most: a bounded summary of an unbounded stream.
//!
//! Space-saving (Metwally, Agrawal and El Abbadi 2005): of `k` counters, one that is lacking
//! is taken from the key with the smallest count, which the newcomer inherits as its possible
//! error. A key with more than `n / k` of `n` events is always among the `k`, whatever the
//! order; no count is too small, and none is too large by more than its error.
//!
//! It is written here because the crates that are kept up count by sketches that forget at
//! random, and then a heavy subject may be missing.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::{Duration, Instant};

use tollgate_core::Key;

use crate::key::SubjectKind;

/// Who was denied most of late: between [`SPAN`] and twice as long ago.
#[derive(Debug)]
pub(crate) struct Top {
    current: Summary<(Key, SubjectKind)>,
    previous: Summary<(Key, SubjectKind)>,
    began: Instant,
}

/// A subject that was denied.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) key: Key,
    pub(crate) kind: SubjectKind,
    /// So often at most.
    pub(crate) count: u64,
    /// And at least so much less often.
    pub(crate) error: u64,
}

/// Subjects that are counted at a time.
pub(crate) const SUBJECTS: usize = 128;

/// What is older than twice that is forgotten: yesterday's flood is not today's trouble.
const SPAN: Duration = Duration::from_secs(600);

impl Top {
    pub(crate) fn new(now: Instant) -> Self {
        let summary = || Summary::new(SUBJECTS);
        Self { current: summary(), previous: summary(), began: now }
    }

    pub(crate) fn count(&mut self, key: Key, kind: SubjectKind, now: Instant) {
        self.pass(now);
        self.current.count((key, kind));
    }

    /// Those that were denied most, first; and since when.
    pub(crate) fn read(&mut self, most: usize, now: Instant) -> Vec<Denied> {
        self.pass(now);
        let denied = |((key, kind), count, error): (&(Key, SubjectKind), u64, u64)| Denied {
            key: key.clone(),
            kind: *kind,
            count,
            error,
        };
        let both = [&self.current, &self.previous];
        first(both.into_iter().flat_map(Summary::iter).map(denied), most)
    }

    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.began);
        if passed < SPAN {
            return;
        }
        let last = mem::replace(&mut self.current, Summary::new(SUBJECTS));
        self.previous = if passed < 2 * SPAN { last } else { Summary::new(SUBJECTS) };
        self.began = now;
    }
}

/// Sums up what is said of each subject; those that were denied most, first.
pub(crate) fn first(all: impl IntoIterator<Item = Denied>, most: usize) -> Vec<Denied> {
    let mut sums: HashMap<(Key, SubjectKind), (u64, u64)> = HashMap::new();
    for Denied { key, kind, count, error } in all {
        let sum = sums.entry((key, kind)).or_default();
        *sum = (sum.0 + count, sum.1 + error);
    }
    let sums = sums.into_iter();
    let mut all: Vec<_> =
        sums.map(|((key, kind), (count, error))| Denied { key, kind, count, error }).collect();
    all.sort_by(|a, b| {
        let by_count = b.count.cmp(&a.count).then(a.error.cmp(&b.error));
        // So that equals keep their places from look to look.
        by_count.then_with(|| a.key.as_bytes().cmp(&*b.key.as_bytes()))
    });
    all.truncate(most);
    all
}

/// The summary itself.
#[derive(Debug)]
struct Summary<K> {
    bound: usize,
    places: HashMap<K, usize>,
    keys: Vec<K>,
    /// Apart from the keys, because the smallest is looked for in all of them.
    counts: Vec<u64>,
    errors: Vec<u64>,
}

impl<K: Clone + Eq + Hash> Summary<K> {
    fn new(bound: usize) -> Self {
        let (places, keys) = (HashMap::new(), Vec::new());
        Self { bound, places, keys, counts: Vec::new(), errors: Vec::new() }
    }

    fn count(&mut self, key: K) {
        if let Some(place) = self.places.get(&key) {
            self.counts[*place] += 1;
        } else if self.keys.len() < self.bound {
            self.places.insert(key.clone(), self.keys.len());
            self.keys.push(key);
            self.counts.push(1);
            self.errors.push(0);
        } else if let Some((place, smallest)) =
            self.counts.iter().copied().enumerate().min_by_key(|(_, count)| *count)
        {
            self.places.remove(&self.keys[place]);
            self.places.insert(key.clone(), place);
            self.keys[place] = key;
            self.counts[place] = smallest + 1;
            self.errors[place] = smallest;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&K, u64, u64)> {
        let numbers = self.counts.iter().zip(&self.errors);
        self.keys.iter().zip(numbers).map(|(key, (count, error))| (key, *count, *error))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nobody_above_their_share_is_missed_and_counts_err_by_no_more_than_they_say(
            bound in 1..12_usize,
            stream in prop::collection::vec(0..40_u32, 0..600),
        ) {
            let mut summary = Summary::new(bound);
            let mut truth: HashMap<u32, u64> = HashMap::new();
            for key in &stream {
                summary.count(*key);
                *truth.entry(*key).or_default() += 1;
            }
            let found: HashMap<_, _> = summary.iter().map(|(k, n, e)| (*k, (n, e))).collect();
            prop_assert!(found.len() <= bound && summary.places.len() == found.len());
            for (key, (count, error)) in &found {
                prop_assert!((count - error..=*count).contains(&truth[key]), "{key}");
            }
            for (key, count) in truth {
                let is_heavy = count * bound as u64 > stream.len() as u64;
                prop_assert!(!is_heavy || found.contains_key(&key), "{key}: {count}");
            }
        }
    }

    fn key(n: u32) -> Key {
        Key::new(n.to_be_bytes())
    }

    #[test]
    fn a_flood_of_keys_neither_grows_it_nor_hides_the_one_that_matters() {
        let now = Instant::now();
        let mut top = Top::new(now);
        for n in 0..100_000 {
            top.count(key(n), SubjectKind::Ip, now);
            if n % 50 == 0 {
                top.count(key(u32::MAX), SubjectKind::User, now);
            }
        }
        assert_eq!(top.current.keys.len(), SUBJECTS);
        let first = &top.read(3, now)[0];
        assert_eq!((&first.key, first.kind), (&key(u32::MAX), SubjectKind::User));
        assert!((first.count - first.error..=first.count).contains(&2_000), "{first:?}");
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let now = Instant::now();
        let mut top = Top::new(now);
        let counts = |top: &mut Top, now| -> Vec<_> {
            top.read(9, now).iter().map(|denied| denied.count).collect()
        };
        top.count(key(1), SubjectKind::Ip, now);
        top.count(key(1), SubjectKind::Ip, now + SPAN / 2);
        top.count(key(1), SubjectKind::Ip, now + SPAN);
        assert_eq!(counts(&mut top, now + SPAN), [3]);
        assert_eq!(counts(&mut top, now + 2 * SPAN), [1]);
        assert_eq!(counts(&mut top, now + 3 * SPAN), [0; 0]);
        top.count(key(2), SubjectKind::Ip, now + 3 * SPAN);
        assert_eq!(counts(&mut top, now + 9 * SPAN), [0; 0]);
    }
}
