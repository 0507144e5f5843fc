//! Random numbers that need not be secret.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;

/// A store's random numbers. They are seeded by the operating system, or in tests by a fixed seed.
#[derive(Debug)]
pub(crate) struct Random {
    seed: u64,
    drawn: AtomicU64,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, drawn: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> u64 {
        FixedState::with_seed(self.seed).hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a random time, at most `most`.
    pub(crate) fn up_to(&self, most: Duration) -> Duration {
        most * ((self.next() % 1001) as u32) / 1000
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new(RandomState::new().hash_one(0))
    }
}
