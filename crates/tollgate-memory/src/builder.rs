//! Bounds and clock of a store.

use std::sync::Arc;
use std::thread;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
#[cfg(doc)]
use tollgate_core::Receipt;

use crate::settled::Settled;
use crate::shard::{Bounds, Shard};
use crate::{Clock, Inner, MemoryStore, Padded, SystemClock};

/// Bounds and clock of a [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder<C = SystemClock> {
    clock: C,
    shards: usize,
    max_keys: usize,
    max_bytes: usize,
    max_receipts: usize,
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self {
            clock: SystemClock::new(),
            // Two threads then meet at a lock in one of 32 decisions on different keys.
            shards: threads * 16,
            max_keys: 1_000_000,
            max_bytes: 256 << 20,
            max_receipts: 1_000_000,
        }
    }
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// The most keys, over all policies; at least one. Default: a million.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys.max(1);
        self
    }

    /// The most bytes for keys and their states. Default: 256 MiB.
    ///
    /// A sliding window log is taken for as large as it may become: 16 KiB, or at full
    /// resolution 32 bytes a unit of its limit, rounded up to a power of two.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// The most settled receipts to remember, each for [`Receipt::LIFETIME`]. Beyond that those
    /// that were settled first are forgotten, and whatever was charged up to then has lapsed:
    /// with the default, and a thousand settled a second, what takes longer than a quarter of
    /// an hour stays as estimated. Default: a million, at some 64 bytes each; with none at all
    /// settling fails.
    ///
    /// As many again of what was in flight are remembered, each for its lease. Beyond that
    /// those that lapse first are forgotten, as what was in flight must come back: settled a
    /// second time, such a receipt may give back a unit of another request that came in the
    /// same microsecond. The layer settles none twice.
    #[must_use]
    pub fn max_receipts(mut self, receipts: usize) -> Self {
        self.max_receipts = receipts;
        self
    }

    /// The number of locks, rounded up to a power of two. Default: 16 a processor.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards.max(1);
        self
    }

    /// Another clock.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        let Self { shards, max_keys, max_bytes, max_receipts, .. } = self;
        MemoryStoreBuilder { clock, shards, max_keys, max_bytes, max_receipts }
    }

    /// The store.
    pub fn build(self) -> MemoryStore<C> {
        // Bounds are divided among the shards. With few keys to a shard chance would fill
        // some of them long before the others, so small stores have few shards.
        let most = (self.max_keys / KEYS_PER_SHARD).min(self.max_bytes / BYTES_PER_SHARD).max(1);
        let shards = self.shards.next_power_of_two().min(1 << most.ilog2());
        let bounds = Bounds { keys: self.max_keys / shards, bytes: self.max_bytes / shards };
        let hasher = RandomState::default();
        MemoryStore(Arc::new(Inner {
            clock: self.clock,
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(bounds, &hasher)))).collect(),
            settled: (0..shards)
                .map(|_| Mutex::new(Settled::new(self.max_receipts.div_ceil(shards))))
                .collect(),
            hasher,
        }))
    }
}

/// Shards that can hold so many keys fill evenly: at random, one in a few hundred is a
/// tenth fuller than the mean.
const KEYS_PER_SHARD: usize = 1_024;

/// Room in each shard for the largest state there is, a log of 100 000 units at full
/// resolution with its debt.
const BYTES_PER_SHARD: usize = 8 << 20;
