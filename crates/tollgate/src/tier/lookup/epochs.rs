//! When results were forgotten.

use std::array;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts how often each client was forgotten. A result is valid only in the epoch in which its
/// look-up started.
///
/// Clients share a fixed number of counters. If a client is forgotten, all clients with the same
/// counter are looked up again.
pub(super) struct Epochs {
    counters: [AtomicU64; 256],
    all: AtomicU64,
    hasher: RandomState,
}

impl Default for Epochs {
    fn default() -> Self {
        let counters = array::from_fn(|_| AtomicU64::default());
        Self { counters, all: AtomicU64::default(), hasher: RandomState::new() }
    }
}

impl Epochs {
    /// Returns the number of the client's counter.
    pub(super) fn counter(&self, name: &str) -> u8 {
        self.hasher.hash_one(name).to_le_bytes()[0]
    }

    pub(super) fn current(&self, counter: u8) -> u64 {
        // Counters only increase, so their sum does too. `Acquire` makes the program's writes before
        // `forget` visible to look-ups in the new epoch.
        let own = self.counters[usize::from(counter)].load(Ordering::Acquire);
        own + self.all.load(Ordering::Acquire)
    }

    pub(super) fn end(&self, name: &str) {
        let counter = usize::from(self.counter(name));
        self.counters[counter].fetch_add(1, Ordering::Release);
    }

    pub(super) fn end_all(&self) {
        self.all.fetch_add(1, Ordering::Release);
    }
}
