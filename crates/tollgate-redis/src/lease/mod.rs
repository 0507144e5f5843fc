//! Leases: units that this replica took in blocks and spends without asking.
//!
//! | file | is |
//! |---|---|
//! | `key.rs`, `blocks/` | one key, and what is held of it |
//! | `demand.rs` | whether it is busy enough for blocks, and how large they are to be |
//! | `refill.rs` | the task that fetches blocks and returns them |
//!
//! A request is answered here if there is a block with room for each of its charges, and else
//! it is decided by Redis, all of it, as if nothing were leased. That no limit is exceeded is
//! for the script to see to (`lease.rs` of `tollgate-core`), as long as no unit is spent after
//! its block has ended. So the time is looked at under the lock under which a unit is taken.
//! If a process is paused after that and before its request proceeds, no store can notice.

mod blocks;
mod demand;
mod key;
mod refill;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::RwLock;
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Source, Verdict};

use self::blocks::Taken;
use self::key::LeasedKey;
use crate::RedisStore;
use crate::clock::{Clock, Moment};
use crate::encode::Ask;

/// The keys of a store of which units are leased, or may be.
#[derive(Debug)]
pub(crate) struct Leases {
    keys: RwLock<Keys>,
    clock: Clock,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Keys {
    table: HashTable<Arc<LeasedKey>>,
    /// When a full table was last looked through for keys that are idle.
    swept: Moment,
}

/// Keys beyond this number get no blocks: a flood of keys must not take unbounded memory. Few keys
/// are busy at a time.
const MOST: usize = 4096;
/// Microseconds between two looks through a full table.
const BETWEEN_SWEEPS: Moment = 20_000;

impl Leases {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { keys: RwLock::default(), clock, hasher: RandomState::default() }
    }

    /// Answers a request from blocks, if all that it takes is in some.
    pub(crate) fn spend(&self, charges: &[Charge<'_>]) -> Option<Verdict> {
        let keys = self.keys.read();
        if keys.table.is_empty() {
            return None;
        }
        if let [charge] = charges {
            let (_, taken) = self.take(&keys, charge)?;
            let verdict = Verdict::single(true, taken.decided_at, taken.decision);
            return Some(verdict.with_source(Source::Lease));
        }
        let mut all: SmallVec<[(&Arc<LeasedKey>, Taken); 4]> = SmallVec::new();
        for (place, charge) in charges.iter().enumerate() {
            // Charges to one key are decided by their sum.
            let taken = if is_twin(charges, place) { None } else { self.take(&keys, charge) };
            let Some(taken) = taken else {
                all.iter().for_each(|(key, taken)| key.blocks.lock().put_back(taken));
                return None;
            };
            all.push(taken);
        }
        let decided_at = all.iter().map(|(_, taken)| taken.decided_at).max()?;
        let decisions = all.iter().map(|(_, taken)| taken.decision);
        Some(Verdict::new(true, decided_at, decisions).with_source(Source::Lease))
    }

    fn take<'a>(&self, keys: &'a Keys, charge: &Charge<'_>) -> Option<(&'a Arc<LeasedKey>, Taken)> {
        if charge.cost == Cost::ZERO {
            // A charge of nothing is a question, and Redis has the better answer.
            return None;
        }
        let key = self.find(keys, charge)?;
        let mut blocks = key.blocks.lock();
        let taken = blocks.take(charge.cost.get(), &self.clock);
        if blocks.wakes_refill() {
            key.bell.notify_one();
        }
        Some((key, taken?))
    }

    /// The keys of a request that could be answered from blocks, if there were some.
    fn spendable(
        &self,
        store: &RedisStore,
        charges: &[Charge<'_>],
    ) -> Option<SmallVec<[Arc<LeasedKey>; 4]>> {
        let may_be = |(place, charge): (usize, &Charge<'_>)| {
            let is_leased = charge.policy.lease().is_some() && charge.cost > Cost::ZERO;
            is_leased && !is_twin(charges, place)
        };
        // Looked at first, so that no entry is made for what is never leased.
        if !charges.iter().enumerate().all(may_be) {
            return None;
        }
        charges.iter().map(|charge| self.find_or_make(store, charge)).collect()
    }

    fn find<'a>(&self, keys: &'a Keys, charge: &Charge<'_>) -> Option<&'a Arc<LeasedKey>> {
        keys.table.find(self.hash(charge), |key| key.is_for(charge))
    }

    /// The key of a charge, a new one if there is room.
    fn find_or_make(&self, store: &RedisStore, charge: &Charge<'_>) -> Option<Arc<LeasedKey>> {
        let lease = charge.policy.lease()?;
        if let Some(key) = self.find(&self.keys.read(), charge) {
            return Some(Arc::clone(key));
        }
        let now = self.clock.now();
        let mut keys = self.keys.write();
        if let Some(key) = self.find(&keys, charge) {
            return Some(Arc::clone(key));
        }
        if keys.table.len() >= MOST {
            if now.saturating_sub(keys.swept) < BETWEEN_SWEEPS {
                return None;
            }
            keys.swept = now;
            keys.table.retain(|key| !key.blocks.lock().is_idle(now));
            if keys.table.len() >= MOST {
                return None;
            }
        }
        let state = store.0.names.state(charge.policy, charge.key);
        let key = Arc::new(LeasedKey::new(charge, lease, state, now));
        let hash = self.hash(charge);
        keys.table.insert_unique(hash, Arc::clone(&key), |key| {
            self.hash(&Charge::new(&key.policy, &key.key, Cost::ONE))
        });
        Some(key)
    }

    fn hash(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        charge.policy.name().hash(&mut hasher);
        charge.key.hash(&mut hasher);
        hasher.finish()
    }
}

/// Whether a charge before it takes from the same quota.
fn is_twin(charges: &[Charge<'_>], place: usize) -> bool {
    charges[..place].iter().any(|other| other.shares_quota_with(&charges[place]))
}

impl Drop for Leases {
    /// Wakes the tasks that keep keys, so that they find the store dropped.
    fn drop(&mut self) {
        self.keys.get_mut().table.iter().for_each(|key| key.bell.notify_one());
    }
}

impl RedisStore {
    /// Redis is asked about these: keys of which that is true often enough get a refill task, where
    /// all of the request are. Blocks of some would lie unused, as a request is answered from
    /// blocks as a whole or not at all.
    pub(crate) fn note_asked(&self, charges: &[Charge<'_>]) {
        let leases = &self.0.leases;
        let Some(keys) = leases.spendable(self, charges) else { return };
        let now = leases.clock.now();
        // Each is counted, whatever the others are.
        let busy = keys.iter().filter(|key| key.blocks.lock().asked(now)).count();
        if busy < keys.len() {
            return;
        }
        for key in keys {
            let mut blocks = key.blocks.lock();
            if !blocks.has_refill {
                blocks.has_refill = true;
                drop(blocks);
                let keep = refill::run(Arc::downgrade(&self.0), key);
                self.0.combiner.runtime.spawn(keep);
            } else if blocks.wakes_refill() {
                key.bell.notify_one();
            }
        }
    }

    /// Returns leased units that were not spent, so that other replicas need not wait until the
    /// leases expire. Call it before a process ends. Later requests may lease again.
    pub async fn return_leases(&self) {
        let leases = &self.0.leases;
        let keys: Vec<_> = leases.keys.read().table.iter().cloned().collect();
        let now = leases.clock.now();
        let nothing = |key: &LeasedKey| Ask {
            tag: 0,
            units: 0,
            ttl: key.policy.lease().unwrap_or_default().time_to_live(),
        };
        let closed = keys.iter().map(|key| (key, key.blocks.lock().close(now)));
        let closed: Vec<_> = closed.filter(|(_, returned)| !returned.is_empty()).collect();
        // All are on their way before the first is waited for.
        let calls = closed.iter().map(|(key, spent)| refill::call(self, key, spent, nothing(key)));
        for call in calls.collect::<Vec<_>>() {
            if let Err(error) = call.await {
                tracing::debug!(target: "tollgate", %error, "a lease will lapse unreturned");
            }
        }
    }
}
