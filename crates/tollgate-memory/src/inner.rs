//! What a store's clones share, and where it stores a key.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use parking_lot::MutexGuard;
use tollgate_core::{Key, Overrides, Policy, ReceiptId};

use crate::settled::Settled;
use crate::shard::Shard;
use crate::sync::Mutex;

pub(crate) struct Inner<C> {
    pub(crate) clock: C,
    pub(crate) hasher: RandomState,
    pub(crate) shards: Box<[Padded]>,
    /// Settled receipts, sharded by their random IDs, so receipts for a busy key spread evenly.
    pub(crate) settled: Box<[Mutex<Settled>]>,
    pub(crate) overrides: Overrides,
}

/// A shard on its own cache lines. Processors fetch lines in pairs, hence 128 bytes.
#[repr(align(128))]
pub(crate) struct Padded(pub(crate) Mutex<Shard>);

/// This store's name in errors.
pub(crate) const NAME: &str = "memory store";

impl<C> Inner<C> {
    /// Returns a key's hash and its shard index. All global policies have the same key, so their
    /// names select the shard. Otherwise, they would all share a lock.
    #[inline]
    pub(crate) fn locate(&self, policy: &Policy, key: &Key) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        let name = if *key == Key::GLOBAL { policy.name_hash() } else { 0 };
        (hash, shard_number(hash ^ name, self.shards.len()))
    }

    pub(crate) fn settled_of(&self, id: ReceiptId) -> &Mutex<Settled> {
        &self.settled[shard_number(self.hasher.hash_one(id), self.settled.len())]
    }
}

/// Returns a key's shard index. `shards` is a power of two.
///
/// The index depends on all bits of the hash. With an unlucky hash seed, which one process in a few
/// hundred gets, any few bits are the same for nearly all addresses in a network.
#[inline]
const fn shard_number(hash: u64, shards: usize) -> usize {
    // Multiplicative hashing by 2^64 over the golden ratio (Knuth, The Art of Computer Programming,
    // volume 3, section 6.4). Its highest bits are the best, so rotate them to the bottom.
    let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(16);
    mixed as usize & (shards - 1)
}

impl Padded {
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use foldhash::SharedSeed;
    use foldhash::fast::SeedableRandomState;
    use tollgate_core::Quota;

    use super::*;
    use crate::MemoryStore;

    #[test]
    fn global_policies_spread_over_shards() {
        let store = MemoryStore::new();
        let mut policies = vec![0; store.0.shards.len()];
        for n in 0..64 * policies.len() {
            let policy = Policy::token_bucket(format!("global {n}"), Quota::per_minute(1)).unwrap();
            let (hash, shard) = store.0.locate(&policy, &Key::GLOBAL);
            assert_eq!(hash, store.0.hasher.hash_one(Key::GLOBAL));
            policies[shard] += 1;
        }
        assert!(policies.iter().all(|policies| (16..160).contains(policies)), "{policies:?}");
    }

    #[test]
    fn shards_fill_evenly_under_bad_seeds() {
        const SHARDS: usize = 8;
        // Found by a search. With the first seed, bits 32 to 34 have only two values for all these
        // keys.
        static SEEDS: [SharedSeed; 4] = [
            SharedSeed::from_u64(0),
            SharedSeed::from_u64(1126),
            SharedSeed::from_u64(2294),
            SharedSeed::from_u64(2296),
        ];
        for (number, seed) in SEEDS.iter().enumerate() {
            let hasher = SeedableRandomState::with_seed(1, seed);
            let mut keys = [0; SHARDS];
            for n in 0..8_000_u32 {
                let address = Key::new((0x0A00_0000 + n).to_be_bytes());
                keys[shard_number(hasher.hash_one(&address), SHARDS)] += 1;
            }
            assert!(keys.iter().all(|keys| (850..1_150).contains(keys)), "{number}: {keys:?}");
        }
    }
}
