//! The store.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{
    BoxFuture, Charge, Cost, FixedVerdict, Key, Micros, NeverPending, Overrides, PenaltyBlock,
    Policy, Receipt, Reply, Settlement, Store, StoreError, Verdict,
};

use crate::clock::{Clock, SystemClock};
use crate::inner::Inner;

/// A store that holds all keys in this process. Clones share all state.
///
/// # Memory
///
/// [`max_keys`](crate::MemoryStoreBuilder::max_keys) and [`max_bytes`](crate::MemoryStoreBuilder::max_bytes)
/// bound the memory under any traffic. The store removes a key when its state equals an unused
/// key's state. Each insertion checks a few other keys for removal, so no background task is
/// needed. If the store is full and finds no key to remove, *new* keys share one overflow entry per
/// policy and shard. So an attacker who sends many keys can neither evict other clients' keys nor
/// get a new quota for each key.
///
/// # Time
///
/// The default [`Clock`] is [`SystemClock`], which never steps.
///
/// # Errors
///
/// The store has no outages. It returns an error only if it is called incorrectly:
///
/// * [`decide`](Store::decide) if a request charges the same policy and key under two quotas;
/// * [`renew`](Store::renew) if the policy is not a concurrency limit;
/// * [`settle`](Store::settle) if the store was built with
///   [`max_receipts(0)`](crate::MemoryStoreBuilder::max_receipts) and the policy is not a concurrency
///   limit.
///
/// A store that has settled more than `max_receipts` receipts forgets the earliest settlements.
/// Older receipts then get [`Settlement::Lapsed`], which is not an error.
///
/// ```
/// use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
/// use tollgate_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::token_bucket("client", Quota::per_minute(2))?;
/// let (store, key) = (MemoryStore::new(), Key::new("203.0.113.7"));
/// for admitted in [true, true, false] {
///     let verdict = store.charge(&policy, &key, Cost::ONE).await?;
///     assert_eq!(verdict.is_admitted(), admitted);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore<C = SystemClock>(pub(crate) Arc<Inner<C>>);

impl<C: Clock> MemoryStore<C> {
    /// Returns the store's clock.
    pub fn clock(&self) -> &C {
        &self.0.clock
    }

    /// Returns a number that is equal for all clones of a store and different for any other live
    /// store. Callers that aggregate several handles use it to count each store only once.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the current number of keys and bytes. Locks every shard in turn.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats { keys: 0, bytes: 0, overflowed: 0 };
        for shard in self.0.shards.iter() {
            let shard = shard.lock();
            stats.keys += shard.own.keys();
            stats.bytes += shard.own.bytes();
            stats.overflowed += shard.overflowed;
        }
        stats
    }
}

/// The number of keys and bytes in a [`MemoryStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// The number of keys in the store, including keys that the store could already remove.
    pub keys: usize,
    /// The bytes of the tables, plus the largest possible size of each state outside them.
    pub bytes: usize,
    /// The number of charges so far, allowed or denied, that used an overflow entry because the
    /// store was full.
    pub overflowed: u64,
}

impl<C: Clock> Store for MemoryStore<C> {
    type Future = NeverPending;

    #[inline(always)]
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        Reply::ready(self.0.decide(charges))
    }

    #[inline(always)]
    fn decide_now<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Option<Result<FixedVerdict<N>, StoreError>> {
        Some(self.0.decide_now(charges))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        Reply::ready(self.0.settle(receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Reply::ready(self.0.renew(receipt))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        let (_, shard) = self.0.locate(policy, key);
        let mut shard = self.0.shards[shard].lock();
        let now = self.0.clock.now();
        shard.enter(now);
        shard.reset(policy, key, now);
        Reply::ready(Ok(()))
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        Reply::ready(self.0.block(policy, key, block))
    }

    fn name(&self) -> &'static str {
        "memory"
    }

    fn overrides(&self) -> Option<Overrides> {
        Some(self.0.overrides.clone())
    }
}

impl<C: Clock> Inner<C> {
    // Always inlined: returning a verdict moves bytes that were just written, which stalls the
    // processor and takes a quarter of a decision's time.
    #[inline(always)]
    pub(crate) fn decide(&self, charges: &[Charge<'_>]) -> Result<Verdict, StoreError> {
        if let Ok(one) = charges.try_into() {
            return self.decide_now::<1>(one).map(Verdict::from);
        }
        if let Ok(two) = charges.try_into() {
            return self.decide_now::<2>(two).map(Verdict::from);
        }
        self.decide_many(charges)
    }

    #[inline(never)]
    fn decide_many(&self, charges: &[Charge<'_>]) -> Result<Verdict, StoreError> {
        if let Ok(three) = charges.try_into() {
            return self.decide_now::<3>(three).map(Verdict::from);
        }
        if let Ok(four) = charges.try_into() {
            return self.decide_now::<4>(four).map(Verdict::from);
        }
        self.decide_all(charges)
    }

    #[inline(always)]
    fn decide_now<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Result<FixedVerdict<N>, StoreError> {
        match self.decide_known(charges) {
            Some(verdict) => Ok(verdict),
            None => self.decide_unknown(charges).map(|verdict| fixed(&verdict)),
        }
    }

    /// Decides a request with a new key, or with charges that depend on one another.
    // Returns another type than its caller, so a known key's decision stays in registers.
    #[cold]
    #[inline(never)]
    fn decide_unknown<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Result<Verdict, StoreError> {
        let admitted = self.admit_new(charges);
        admitted.map_or_else(|| self.decide_all(charges), |verdict| Ok(verdict.into()))
    }
}

fn fixed<const N: usize>(verdict: &Verdict) -> FixedVerdict<N> {
    let decisions = verdict.decisions().try_into().expect("a decision for each charge");
    FixedVerdict { admitted: verdict.is_admitted(), decided_at: verdict.decided_at(), decisions }
}

impl<C: Clock> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("clock", &self.0.clock)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tollgate_core::{Quota, Timestamp};
    use tollgate_interleavings::{explore, thread};

    use super::*;

    /// Time passes with each reading.
    #[derive(Clone, Debug)]
    struct Readings(Arc<AtomicU64>);

    impl Clock for Readings {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    /// Requests charge the keys of two shards in any order.
    #[test]
    fn concurrent_decisions_follow_their_times() {
        explore(|| {
            let clock = Readings(Arc::new(AtomicU64::new(1)));
            let store = MemoryStore::builder().shards(2).clock(clock).build();
            let policy = |name| Policy::fixed_window_counter(name, Quota::per_minute(9)).unwrap();
            let (one, two) = (policy("one"), policy("two"));
            let mut keys = (0_u8..).map(|number| Key::new([number]));
            let mut key_in = |shard| keys.find(|key| store.0.locate(&one, key).1 == shard).unwrap();
            let (first, second) = (key_in(0), key_in(1));
            let threads = [[0, 1], [1, 0]].map(|order| {
                let (store, policies) = (store.clone(), [one.clone(), two.clone()]);
                let keys = [first.clone(), second.clone()];
                thread::spawn(move || {
                    let charge = |at: usize| Charge::new(&policies[at], &keys[at], Cost::ONE);
                    let both = order.map(charge);
                    // New keys, known keys, and a single key take different paths.
                    [&both[..], &both[..], &[charge(0)]].map(|charges| {
                        let verdict = store.0.decide(charges).unwrap();
                        let index = charges.iter().position(|it| it.policy.name() == "one");
                        (verdict.decided_at(), verdict.decisions()[index.unwrap()].remaining)
                    })
                })
            });
            let mut decided: Vec<_> =
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            decided.sort_unstable();
            let remaining: Vec<_> = decided.iter().map(|(_, remaining)| *remaining).collect();
            assert_eq!(remaining, [8, 7, 6, 5, 4, 3]);
        });
    }
}
