//! The fast path for requests with keys that are already in the store.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Decision, Outcome, Timestamp, Verdict, with_rule};

use crate::any_table::Kind;
use crate::clock::Clock;
use crate::inner::Inner;
use crate::part::EntryKey;
use crate::shard::Shard;

/// Requests with more charges take the slow path.
const MAX_CHARGES: usize = 4;

/// A charge and its key's location.
#[derive(Clone, Copy)]
struct Known<'a> {
    charge: &'a Charge<'a>,
    hash: u64,
    /// The shard's index.
    shard: usize,
    table: usize,
    bucket: usize,
}

impl<C: Clock> Inner<C> {
    /// Decides a single charge to a known key, the path that nearly every request takes.
    // Always inlined: a returned decision would be written and then immediately read at a different
    // width, which stalls the processor and takes a quarter of the total time.
    #[inline(always)]
    pub(crate) fn decide_one(&self, charge: &Charge<'_>) -> Option<(Decision, Timestamp)> {
        let Charge { policy, key, cost, .. } = *charge;
        let (hash, shard) = self.locate(policy, key);
        let shard = self.shards[shard].lock();
        let entry_key = EntryKey { policy, key, hash, table: shard.own.known_table(policy)? };
        with_rule!(policy.rule(), rule => decide_by(rule, shard, entry_key, cost, &self.clock))
    }

    /// Decides a few charges to keys that are all in the store.
    ///
    /// Returns `None` without changing state if the request needs [`decide_all`](Self::decide_all).
    /// This is the case if a key is new, if two charges have the same policy and may have to be
    /// summed, if a denial may cause a strike, or if a charge is dry.
    pub(crate) fn decide_few(&self, charges: &[Charge<'_>]) -> Option<Verdict> {
        let is_plain = |charge: &Charge<'_>| !charge.dry && !charge.policy.counts_denials();
        let are_plain = charges.len() <= MAX_CHARGES && charges.iter().all(is_plain);
        if !are_plain || may_repeat_a_policy(charges) {
            return None;
        }
        let mut known = SmallVec::<[Known<'_>; MAX_CHARGES]>::new();
        for charge in charges {
            let (hash, shard) = self.locate(charge.policy, charge.key);
            known.push(Known { charge, hash, shard, table: 0, bucket: 0 });
        }
        let mut shards = Locked::default();
        self.lock_in_order(known.iter().map(|known| known.shard), &mut shards);
        for known in &mut known {
            let part = &shards.of(known.shard).own;
            known.table = part.known_table(known.charge.policy)?;
            known.bucket = part.bucket(known.table, known.hash, known.charge.key)?;
        }
        Some(decide_known(&known, &mut shards, self.clock.now()))
    }

    /// Locks shards in index order, so requests cannot deadlock. The guards are pushed individually
    /// to their final place, which is empty: moving values that were just written at a different
    /// width would stall until the writes complete.
    pub(crate) fn lock_in_order<'a>(
        &'a self,
        numbers: impl Iterator<Item = usize>,
        shards: &mut Locked<'a>,
    ) {
        let mut order = SmallVec::<[usize; MAX_CHARGES]>::new();
        for number in numbers {
            order.push(number);
        }
        // There are usually two, which are already sorted half of the time.
        if !order.is_sorted_by(|a, b| a < b) {
            order.sort_unstable();
            order.dedup();
        }
        for &number in &order {
            shards.0.push((number, self.shards[number].lock()));
        }
    }
}

/// Makes every allowed charge, or none if an enforced policy denies.
fn decide_known(known: &[Known<'_>], shards: &mut Locked<'_>, now: Timestamp) -> Verdict {
    let mut decisions = SmallVec::<[Decision; MAX_CHARGES]>::new();
    let mut admitted = true;
    for &Known { charge, shard, table, bucket, .. } in known {
        let decision = shards.of(shard).own.assess(table, bucket, charge.cost, now);
        admitted &= decision.allows() || !charge.enforce;
        decisions.push(decision);
    }
    for (&Known { charge, shard, table, bucket, .. }, decision) in known.iter().zip(&mut decisions)
    {
        let part = &mut shards.of(shard).own;
        if decision.denies() {
            continue;
        }
        if !admitted {
            // A denied request is not charged, so report the units that remain without it.
            let untouched = part.assess(table, bucket, Cost::ZERO, now);
            *decision = Decision { outcome: Outcome::WouldAllow, ..untouched };
        } else if charge.cost > Cost::ZERO {
            part.charge(table, bucket, charge.cost, now);
        }
    }
    Verdict::new(admitted, now, decisions.iter().copied())
}

/// Decides on a known key, and charges it if `cost` is allowed.
#[inline(always)]
fn decide_by<R: Kind>(
    rule: &R,
    mut shard: MutexGuard<'_, Shard>,
    entry_key: EntryKey<'_>,
    cost: Cost,
    clock: &impl Clock,
) -> Option<(Decision, Timestamp)> {
    let state = shard.own.state_mut::<R>(entry_key)?;
    // Read the clock under the lock, so time does not step back between decisions, and after the
    // search, which would otherwise wait for the clock.
    let now = clock.now();
    let decision = rule.assess(rule.refresh(state, now), now, cost);
    if decision.allows() && cost > Cost::ZERO {
        rule.charge(state, now, cost);
    }
    Some((decision, now))
}

/// A request's locked shards, with their indices.
#[derive(Default)]
pub(crate) struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); MAX_CHARGES]>);

impl Locked<'_> {
    /// Returns the shard with this index, which must be locked.
    #[inline]
    pub(crate) fn of(&mut self, number: usize) -> &mut Shard {
        let shard = self.0.iter_mut().find(|(locked, _)| *locked == number);
        &mut shard.expect("a request uses the shards that it has locked").1
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.0.iter_mut().map(|(_, guard)| &mut **guard)
    }
}

/// Whether two charges may have the same policy. Different names rarely have the same hash.
fn may_repeat_a_policy(charges: &[Charge<'_>]) -> bool {
    let same = |a: &Charge<'_>, b: &Charge<'_>| a.policy.name_hash() == b.policy.name_hash();
    charges.iter().enumerate().any(|(n, charge)| charges[..n].iter().any(|b| same(charge, b)))
}
