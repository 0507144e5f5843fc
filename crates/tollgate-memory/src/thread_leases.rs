//! A memory store with leases for each thread.

use std::cell::RefCell;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tollgate_core::{
    BoxFuture, Charge, Cost, Decision, Key, Lease, Micros, NeverPending, Outcome, Overrides,
    PenaltyBlock, Policy, Receipt, Reply, Settlement, Source, Store, StoreError, Timestamp,
    Verdict,
};

use crate::clock::{Clock, SystemClock};
use crate::store::MemoryStore;

/// A [`MemoryStore`] from which each thread takes a busy key's units in blocks, so threads rarely
/// wait for the same lock. Clones share all state.
///
/// It applies to policies with a [`Lease`]. The store decides every request that has several
/// charges or no lease.
///
/// # How exact it is
///
/// A block's units are charged when a thread takes it, and may be spent until the lease's
/// [time to live](Lease::time_to_live) is over. So in any span a key may be granted **more** than
/// its policy allows, at most by the units that threads held when the span started:
/// [`Lease::units`] for each thread. Units that a thread does not spend by then are lost, and count
/// as long as any other charge. Then **fewer** requests are allowed, by the same number of units.
///
/// A thread holds at most as many units of a key as it has spent recently. Its first block is a
/// single unit, which is an exact decision. A block that is used up within half of its time doubles
/// the next block, and a block that expires halves it.
///
/// # Numbers
///
/// A verdict from a block has [`Source::Lease`]. Its `remaining` and `reset_after` date from when
/// the thread took the block, and do not include other threads' decisions since then.
///
/// # Memory
///
/// A thread remembers blocks of up to 4096 keys in addition to the store's memory.
///
/// ```
/// use tollgate_core::{Cost, Key, Lease, Policy, Quota, Source, StoreExt};
/// use tollgate_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new().with_thread_leases();
/// // Each thread holds up to 50 units.
/// let policy = Policy::token_bucket("hot", Quota::per_second(1_000))?.with_lease(Lease::of(1, 20))?;
/// for source in [Source::Store, Source::Store, Source::Lease] {
///     let verdict = store.charge(&policy, &Key::GLOBAL, Cost::ONE).await?;
///     assert_eq!((verdict.is_admitted(), verdict.source()), (true, source));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ThreadLeases<C = SystemClock> {
    store: MemoryStore<C>,
    /// For each part of the keys, a number that no other part and no other store has. Blocks with an
    /// earlier number must not be spent.
    generations: Arc<[AtomicU64; GENERATIONS]>,
}

/// A reset ends the blocks of this part of the keys.
const GENERATIONS: usize = 256;

impl<C: Clock> MemoryStore<C> {
    /// Lets each thread take units in blocks, for policies with a [`Lease`]. Limits are then less
    /// exact: see [`ThreadLeases`].
    pub fn with_thread_leases(self) -> ThreadLeases<C> {
        let generations = std::array::from_fn(|_| AtomicU64::new(next_generation()));
        ThreadLeases { store: self, generations: Arc::new(generations) }
    }
}

fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    /// This thread's blocks, in all stores.
    static BLOCKS: RefCell<HashTable<Block>> = const { RefCell::new(HashTable::new()) };
}

/// How many blocks a thread remembers.
const MAX_BLOCKS: usize = 4096;

/// Units that this thread may spend.
struct Block {
    generation: u64,
    policy: Policy,
    key: Key,
    hash: u64,
    left: u64,
    /// The units that the next block should have.
    next: u64,
    taken_at: Timestamp,
    until: Timestamp,
    /// The store's decision when the thread took the block.
    decision: Decision,
}

impl Block {
    fn is_for(&self, generation: u64, charge: &Charge<'_>) -> bool {
        self.generation == generation
            && self.key == *charge.key
            && self.policy.shares_state_with(charge.policy)
    }

    /// Returns the units that may still be spent.
    fn usable(&self, now: Timestamp) -> u64 {
        // The clock may step back.
        if (self.taken_at..=self.until).contains(&now) { self.left } else { 0 }
    }

    /// Spends `cost`, if the block has enough usable units.
    fn spend(&mut self, cost: u64, now: Timestamp) -> Option<Verdict> {
        self.left = self.usable(now).checked_sub(cost)?;
        Some(self.verdict(now).with_source(Source::Lease))
    }

    fn verdict(&self, now: Timestamp) -> Verdict {
        let passed = now.since(self.taken_at).get();
        let decision = Decision {
            remaining: self.decision.remaining + self.left,
            reset_after: Micros::new(self.decision.reset_after.get().saturating_sub(passed)),
            ..self.decision
        };
        Verdict::single(true, now, decision)
    }

    /// Adapts the size of the next block to how fast this block was spent.
    fn adapt(&mut self, lease: Lease, now: Timestamp) {
        let half = self.until.since(self.taken_at).get() / 2;
        if now > self.until {
            self.next /= 2;
        } else if now.since(self.taken_at).get() < half {
            self.next *= 2;
        }
        self.next = self.next.clamp(1, lease.units(self.policy.capacity()));
    }
}

impl<C: Clock> ThreadLeases<C> {
    /// Returns the store that decides requests without leases.
    pub fn store(&self) -> &MemoryStore<C> {
        &self.store
    }

    fn hash(&self, policy: &Policy, key: &Key) -> u64 {
        self.store.0.hasher.hash_one(key) ^ policy.name_hash()
    }

    fn generation(&self, hash: u64) -> &AtomicU64 {
        &self.generations[hash as usize % GENERATIONS]
    }

    /// Decides a charge from this thread's block, or takes a new block.
    fn decide_leased(&self, charge: &Charge<'_>, lease: Lease) -> Result<Verdict, StoreError> {
        let hash = self.hash(charge.policy, charge.key);
        let generation = self.generation(hash).load(Ordering::Relaxed);
        let (now, cost) = (self.store.clock().now(), charge.cost.get());
        BLOCKS.with_borrow_mut(|blocks| {
            let is_for = |block: &Block| block.is_for(generation, charge);
            if let Some(block) = blocks.find_mut(hash, is_for) {
                if let Some(verdict) = block.spend(cost, now) {
                    return Ok(verdict);
                }
                block.adapt(lease, now);
                // The request also spends the rest of the old block, so no units are lost.
                let missing = cost - block.usable(now);
                return self.refill(block, missing, charge, lease);
            }
            if blocks.len() >= MAX_BLOCKS {
                blocks.retain(|block| (block.taken_at..=block.until).contains(&now));
            }
            let verdict = self.decide_one(charge, charge.cost)?;
            if blocks.len() < MAX_BLOCKS
                && verdict.is_admitted()
                && let Entry::Vacant(vacant) = blocks.entry(hash, is_for, |block| block.hash)
            {
                vacant.insert(Block {
                    generation,
                    policy: charge.policy.clone(),
                    key: charge.key.clone(),
                    hash,
                    left: 0,
                    next: 1,
                    taken_at: verdict.decided_at(),
                    until: verdict.decided_at() + lease.time_to_live(),
                    decision: verdict.decisions()[0],
                });
            }
            Ok(verdict)
        })
    }

    /// Takes a block, and spends the request's `missing` units from it, in addition to the rest of
    /// the old block. Near the limit, the store grants only these units.
    fn refill(
        &self,
        block: &mut Block,
        missing: u64,
        charge: &Charge<'_>,
        lease: Lease,
    ) -> Result<Verdict, StoreError> {
        let mut units = block.next.max(missing);
        let mut verdict = self.decide_one(charge, Cost::new(units))?;
        if !verdict.is_admitted() && units > missing {
            (block.next, units) = (1, missing);
            verdict = self.decide_one(charge, Cost::new(units))?;
        }
        if !verdict.is_admitted() && missing < charge.cost.get() {
            // The rest of the block may expire while the client waits, so it has to wait until all
            // its units fit.
            return self.decide_one(charge, charge.cost);
        }
        if let Outcome::Allow { .. } = verdict.decisions()[0].outcome {
            (block.left, block.decision) = (units - missing, verdict.decisions()[0]);
            block.taken_at = verdict.decided_at();
            block.until = block.taken_at + lease.time_to_live();
            return Ok(block.verdict(block.taken_at));
        }
        Ok(verdict)
    }

    fn decide_one(&self, charge: &Charge<'_>, cost: Cost) -> Result<Verdict, StoreError> {
        self.store.0.decide(&[Charge { cost, ..*charge }])
    }
}

impl<C: Clock> Store for ThreadLeases<C> {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        if let [charge] = charges
            && let Some(lease) = charge.policy.lease()
            && charge.enforce
            && (1..=charge.policy.capacity()).contains(&charge.cost.get())
        {
            return Reply::ready(self.decide_leased(charge, lease));
        }
        self.store.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.store.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.store.renew(receipt)
    }

    /// Also makes all threads forget their blocks of this key, and of few others.
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        let hash = self.hash(policy, key);
        self.generation(hash).store(next_generation(), Ordering::Relaxed);
        self.store.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.store.block(policy, key, block)
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn overrides(&self) -> Option<Overrides> {
        self.store.overrides()
    }
}

tollgate_core::debug_fields!([C: Clock] ThreadLeases<C>, store);
