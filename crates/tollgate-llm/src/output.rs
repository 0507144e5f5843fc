use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Learns the length of responses per client and model, for requests without a maximum.
///
/// Reserving the highest possible output blocks the client's other requests, although most
/// responses are far shorter. 5 % of responses exceed [`percentile_95`](Self::percentile_95) and
/// cause a debt.
///
/// ```
/// use tollgate_llm::OutputHistory;
///
/// let history = OutputHistory::new(10_000);
/// for output in [90; 19].into_iter().chain([2_000]) {
///     history.record("client 7", "gpt-5-mini", output);
/// }
/// assert_eq!(history.percentile_95("client 7", "gpt-5-mini"), Some(95));
/// assert_eq!(history.percentile_95("client 8", "gpt-5-mini"), None);
/// ```
///
/// Clones share the history.
#[derive(Clone, Debug)]
pub struct OutputHistory(Arc<Histograms>);

#[derive(Debug)]
struct Histograms {
    hasher: RandomState,
    /// Half of the maximum, because there are two generations.
    max_recent: usize,
    generations: Mutex<Generations>,
}

/// If `recent` is full, it replaces `earlier`, so unused entries disappear.
#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<u64, Histogram>,
    earlier: HashMap<u64, Histogram>,
}

impl OutputHistory {
    /// Makes an empty history. It stores at most this many pairs of client and model, at about 150
    /// bytes each.
    pub fn new(max_pairs: usize) -> Self {
        let max_recent = (max_pairs / 2).max(1);
        let (hasher, generations) = (RandomState::new(), Mutex::default());
        Self(Arc::new(Histograms { hasher, max_recent, generations }))
    }

    /// Records a complete response's output tokens.
    pub fn record(&self, client: impl Hash, model: &str, output: u64) {
        self.record_of(self.pair(client, model), output);
    }

    /// Returns the number of output tokens that 95 % of the responses do not exceed, rounded up by at
    /// most 25 %. `None` for fewer than 20 responses. Recent responses count more.
    pub fn percentile_95(&self, client: impl Hash, model: &str) -> Option<u64> {
        self.percentile_of(self.pair(client, model))
    }

    pub(crate) fn pair(&self, client: impl Hash, model: &str) -> u64 {
        self.0.hasher.hash_one((client, model))
    }

    pub(crate) fn record_of(&self, pair: u64, output: u64) {
        let Generations { recent, earlier } = &mut *self.generations();
        if !recent.contains_key(&pair) && recent.len() == self.0.max_recent {
            *earlier = std::mem::take(recent);
        }
        let earlier = || earlier.remove(&pair).unwrap_or_default();
        recent.entry(pair).or_insert_with(earlier).record(output);
    }

    pub(crate) fn percentile_of(&self, pair: u64) -> Option<u64> {
        let Generations { recent, earlier } = &*self.generations();
        recent.get(&pair).or_else(|| earlier.get(&pair))?.percentile_95()
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.0.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Four buckets per power of two.
const BUCKETS: usize = 88;

#[derive(Debug)]
struct Histogram {
    counts: [u8; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    fn record(&mut self, output: u64) {
        let count = &mut self.counts[bucket(output)];
        *count = count.saturating_add(1);
        if *count == u8::MAX {
            self.counts = self.counts.map(|count| count / 2);
        }
    }

    fn percentile_95(&self) -> Option<u64> {
        let total: u32 = self.counts.iter().copied().map(u32::from).sum();
        if total < 20 {
            return None;
        }
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += u32::from(*count);
            below * 20 >= total * 19
        })?;
        Some(highest(bucket))
    }
}

/// A number's bucket: its power of two and the two bits below.
const fn bucket(number: u64) -> usize {
    if number < 8 {
        return number as usize;
    }
    let power = number.ilog2();
    let quarter = (number >> (power - 2)) & 3;
    let bucket = 4 * power as usize + quarter as usize - 4;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The highest number in a bucket.
const fn highest(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let power = bucket / 4 + 1;
    ((bucket % 4 + 5) as u64) * (1 << (power - 2)) - 1
}
