//! Leases: blocks of units that this replica took from Redis and spends without calling it.
//!
//! | file | contains |
//! |---|---|
//! | `key.rs`, `blocks/` | a key, and its blocks in this replica |
//! | `demand.rs` | whether a key is busy enough for blocks, and how large they should be |
//! | `refill.rs` | the task that fetches and returns blocks |
//!
//! A request is answered here if every charge fits a block. Otherwise Redis decides the complete
//! request, without leased units. The script ensures that leases never exceed a limit (`lease.rs`
//! in `tollgate-core`), as long as no unit is spent after its block has expired. The clock is
//! therefore read under the lock that guards the units. If a process is paused between that and its
//! request, no store can notice.

mod blocks;
mod demand;
mod key;
mod refill;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Source, Verdict};

use self::blocks::Taken;
use self::key::LeasedKey;
use crate::clock::{Clock, Moment};
use crate::script::names::Names;
use crate::sync::RwLock;

/// A store's keys with units that are or may be leased.
#[derive(Debug)]
pub(crate) struct Leases {
    keys: RwLock<Keys>,
    clock: Clock,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Keys {
    table: HashTable<Arc<LeasedKey>>,
    /// When a full table was last swept for idle keys.
    swept: Moment,
}

/// The maximum number of keys that may get blocks, because a flood of keys must not use unbounded
/// memory. Few keys are busy at the same time.
const MOST: usize = 4096;
/// Microseconds between sweeps when the table is full.
const BETWEEN_SWEEPS: Moment = 20_000;

impl Leases {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { keys: RwLock::default(), clock, hasher: RandomState::default() }
    }

    /// Answers a request from blocks, if they cover every charge.
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
            // Charges to the same key are decided by their sum.
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
            // A charge of zero only queries the state, and Redis has the more accurate answer.
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

    /// Returns a request's keys, if blocks could answer it.
    fn spendable(
        &self,
        names: &Names,
        charges: &[Charge<'_>],
    ) -> Option<SmallVec<[Arc<LeasedKey>; 4]>> {
        let may_be = |(place, charge): (usize, &Charge<'_>)| {
            let is_leased = charge.policy.lease().is_some() && charge.cost > Cost::ZERO;
            is_leased && !is_twin(charges, place)
        };
        // Checked first, so no entry is created for requests that blocks can never answer.
        if !charges.iter().enumerate().all(may_be) {
            return None;
        }
        charges.iter().map(|charge| self.find_or_make(names, charge)).collect()
    }

    fn find<'a>(&self, keys: &'a Keys, charge: &Charge<'_>) -> Option<&'a Arc<LeasedKey>> {
        keys.table.find(self.hash(charge), |key| key.is_for(charge))
    }

    /// Returns a charge's key, and creates it if there is room.
    fn find_or_make(&self, names: &Names, charge: &Charge<'_>) -> Option<Arc<LeasedKey>> {
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
        let state = names.state(charge.policy, charge.key);
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

/// Whether an earlier charge takes from the same quota.
fn is_twin(charges: &[Charge<'_>], place: usize) -> bool {
    charges[..place].iter().any(|other| other.shares_quota_with(&charges[place]))
}

impl Drop for Leases {
    /// Wakes the refill tasks, so they notice that the store is dropped.
    fn drop(&mut self) {
        self.keys.get_mut().table.iter().for_each(|key| key.bell.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Lease, Policy, Quota};
    use tollgate_interleavings::{explore, thread};

    use super::*;

    /// Units in a key that the table no longer has could not be returned.
    #[test]
    fn concurrent_requests_share_a_key() {
        explore(|| {
            let leases = Arc::new(Leases::new(Clock::default()));
            let found = [0; 2].map(|_| {
                let leases = Arc::clone(&leases);
                thread::spawn(move || {
                    let policy = Policy::token_bucket("p", Quota::per_second(9)).unwrap();
                    let policy = policy.with_lease(Lease::of(1, 3)).unwrap();
                    let charge = Charge::new(&policy, &Key::GLOBAL, Cost::ONE);
                    leases.find_or_make(&Names::new("tests", b""), &charge).unwrap()
                })
            });
            let [one, other] = found.map(|found| found.join().unwrap());
            assert!(Arc::ptr_eq(&one, &other));
        });
    }
}
