//! The store's builder.

use std::sync::{Arc, LazyLock};
use std::thread;

use foldhash::fast::RandomState;
use tollgate_core::Overrides;
#[cfg(doc)]
use tollgate_core::Receipt;

use crate::clock::{Clock, SystemClock};
use crate::inner::{Inner, Padded};
use crate::settled::Settled;
use crate::shard::{Bounds, Shard};
use crate::store::MemoryStore;
use crate::sync::Mutex;

impl MemoryStore {
    /// Creates a store for up to a million keys and 256 MiB, with [`SystemClock`].
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder to configure the bounds and the clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Configures the bounds and the clock of a [`MemoryStore`].
///
/// ```
/// use tollgate_memory::MemoryStore;
///
/// let store = MemoryStore::builder().max_keys(100_000).max_bytes(64 << 20).build();
/// assert_eq!(store.stats().keys, 0);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryStoreBuilder<C = SystemClock> {
    clock: C,
    shards: usize,
    max_keys: usize,
    max_bytes: usize,
    max_receipts: usize,
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        // Asking the system takes longer than building a store.
        static THREADS: LazyLock<usize> =
            LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));
        Self {
            clock: SystemClock::new(),
            // With this many shards, two threads need the same lock in 1 of 32 decisions on
            // different keys.
            shards: *THREADS * 16,
            max_keys: 1_000_000,
            max_bytes: 256 << 20,
            max_receipts: 1_000_000,
        }
    }
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// Sets the maximum number of keys over all policies, at least 1. The default is a million.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys.max(1);
        self
    }

    /// Sets the maximum number of bytes for keys and their states. The default is 256 MiB.
    ///
    /// A sliding window log counts with its largest possible size: 16 KiB, or 32 bytes per quota
    /// unit at full resolution, rounded up to a power of two.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets how many settled receipts the store remembers, in order to reject a second settlement.
    /// The default is a million, at about 64 bytes each. With 0, settling fails.
    ///
    /// Each receipt is remembered for [`Receipt::LIFETIME`]. When the limit is reached, the store
    /// forgets the receipt that was settled first. Receipts charged before that settlement can then
    /// no longer be settled, so their estimated cost is final. With the default and 1000
    /// settlements per second, this affects requests that take longer than 15 minutes.
    ///
    /// The same number of concurrency limit receipts is remembered, each for its permit's time to
    /// live. When that limit is reached, the receipt that lapses first is forgotten, but no receipt
    /// is rejected, because permits must be returned. If a caller then settles the forgotten
    /// receipt again, the store may return a permit that another request took in the same
    /// microsecond. The layer settles each receipt only once.
    pub fn max_receipts(mut self, receipts: usize) -> Self {
        self.max_receipts = receipts;
        self
    }

    /// Sets the number of shards, each with its own lock, rounded up to a power of two. The default
    /// is 16 per processor.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards.max(1);
        self
    }

    /// Replaces the clock.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        let Self { shards, max_keys, max_bytes, max_receipts, .. } = self;
        MemoryStoreBuilder { clock, shards, max_keys, max_bytes, max_receipts }
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore<C> {
        // The bounds are divided among the shards. With few keys per shard, some shards would fill
        // up long before the rest, so a small store has few shards.
        let most = (self.max_keys / KEYS_PER_SHARD).min(self.max_bytes / BYTES_PER_SHARD).max(1);
        let shards = self.shards.next_power_of_two().min(1 << most.ilog2());
        let bounds = Bounds { keys: self.max_keys / shards, bytes: self.max_bytes / shards };
        let hasher = RandomState::default();
        let clock = self.clock.clone();
        MemoryStore(Arc::new(Inner {
            overrides: Overrides::in_process(move || clock.now()),
            clock: self.clock,
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(bounds, &hasher)))).collect(),
            settled: (0..shards)
                .map(|_| Mutex::new(Settled::new(self.max_receipts.div_ceil(shards))))
                .collect(),
            hasher,
        }))
    }
}

/// Shards of this size fill evenly: only one shard in a few hundred has 10 % more keys than the
/// mean.
const KEYS_PER_SHARD: usize = 1_024;

/// The largest possible state size: a log of 100 000 units at full resolution with a debt.
const BYTES_PER_SHARD: usize = 8 << 20;
