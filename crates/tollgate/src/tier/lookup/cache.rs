//! A bounded map of clients.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use parking_lot::Mutex;
use tollgate_core::Key;

/// A map that drops clients when it is full. Clients that were not used since their last turn are
/// dropped first (the CLOCK algorithm), so a flood of new clients does not displace active clients.
pub(super) struct Cache<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    /// The most clients per shard.
    capacity: usize,
    hasher: RandomState,
}

struct Shard<V> {
    entries: HashMap<Key, (V, Used)>,
    /// The clients, ordered by turn.
    turns: VecDeque<Key>,
}

/// Whether a client was used since its last turn.
type Used = bool;

/// So that threads seldom wait for each other.
const SHARDS: usize = 16;

impl<V: Clone> Cache<V> {
    pub(super) fn new(capacity: usize) -> Self {
        let shards = SHARDS.min(capacity.max(1));
        let shard = || Mutex::new(Shard { entries: HashMap::new(), turns: VecDeque::new() });
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            capacity: capacity.div_ceil(shards).max(1),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<V> {
        self.shard(key).lock().entries.get(key).map(|(value, _)| value.clone())
    }

    pub(super) fn get_or_insert(&self, key: &Key, value: impl FnOnce() -> V) -> V {
        let mut shard = self.shard(key).lock();
        if let Some((value, used)) = shard.entries.get_mut(key) {
            *used = true;
            return value.clone();
        }
        if shard.entries.len() >= self.capacity {
            shard.drop_one();
        }
        let value = value();
        shard.entries.insert(key.clone(), (value.clone(), false));
        shard.turns.push_back(key.clone());
        value
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard<V>> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits do")]
        let hash = self.hasher.hash_one(key) as usize;
        &self.shards[hash % self.shards.len()]
    }
}

impl<V> Shard<V> {
    fn drop_one(&mut self) {
        // Each used client has another turn, so after one round a client is dropped.
        while let Some(key) = self.turns.pop_front() {
            match self.entries.entry(key) {
                Entry::Occupied(mut entry) if entry.get().1 => {
                    entry.get_mut().1 = false;
                    self.turns.push_back(entry.key().clone());
                }
                Entry::Occupied(entry) => {
                    entry.remove();
                    return;
                }
                Entry::Vacant(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::new(number.to_be_bytes())
    }

    #[test]
    fn flood_does_not_displace_active_clients() {
        let cache = Cache::new(160);
        for flood in 0..5_000 {
            cache.get_or_insert(&key(1_000 + flood), || flood);
            for active in 0..10 {
                cache.get_or_insert(&key(active), || active);
            }
        }
        for active in 0..10 {
            assert_eq!(cache.get(&key(active)), Some(active), "{active}");
        }
        let count = cache.shards.iter().map(|shard| shard.lock().entries.len()).sum::<usize>();
        assert!(count <= 160, "{count}");
        let turns = cache.shards.iter().map(|shard| shard.lock().turns.len()).sum::<usize>();
        assert_eq!(turns, count);
    }

    #[test]
    fn smallest_cache_holds_a_client() {
        let cache = Cache::new(0);
        for client in [1, 2, 2, 1] {
            assert_eq!(cache.get_or_insert(&key(client), || client), client);
        }
        assert_eq!(cache.get(&key(1)), Some(1));
        assert_eq!(cache.get(&key(2)), None);
    }
}
