//! The short way of a request: all its keys are known.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Decision, Outcome, Timestamp, Verdict};

use crate::shard::Shard;
use crate::{Clock, Inner};

/// Requests of more charges take the long way.
const MOST: usize = 4;

/// A charge, and where its key is if it is known.
#[derive(Clone, Copy)]
struct Known {
    /// The number of the shard.
    shard: usize,
    table: usize,
    hash: u64,
}

impl<C: Clock> Inner<C> {
    /// Decides one charge on a key that is known: the path of nearly every request.
    #[inline(always)]
    pub(crate) fn decide_one(&self, charge: &Charge<'_>) -> Option<(Decision, Timestamp)> {
        let hash = self.hash(charge.key);
        let mut shard = self.shards[self.shard_number(hash)].lock();
        // Under the lock, so that time does not step back from one decision to the next.
        let now = self.clock.now();
        let table = shard.own.known_table(charge.policy)?;
        let decision = shard.own.decide(table, hash, charge.key, charge.cost, now)?;
        Some((decision, now))
    }

    /// Decides a few charges on keys that are all known. `None`, and nothing has changed,
    /// if one is not, if two charges are to the same policy, as they may have to be added up,
    /// if a denial may be a strike, or if a charge is dry. Then
    /// [`decide_all`](Self::decide_all) knows what to do.
    pub(crate) fn decide_few(&self, charges: &[Charge<'_>]) -> Option<Verdict> {
        let is_plain = |charge: &Charge<'_>| !charge.dry && !charge.policy.counts_denials();
        if charges.len() > MOST || !charges.iter().all(is_plain) || names_a_policy_twice(charges) {
            return None;
        }
        let mut known = [Known { shard: 0, table: 0, hash: 0 }; MOST];
        let known = &mut known[..charges.len()];
        for (known, charge) in known.iter_mut().zip(charges) {
            known.hash = self.hash(charge.key);
            known.shard = self.shard_number(known.hash);
        }
        let mut shards = self.lock_in_order(known.iter().map(|known| known.shard));
        let now = self.clock.now();
        let mut decisions = SmallVec::<[Decision; MOST]>::new();
        for (known, charge) in known.iter_mut().zip(charges) {
            let shard = shards.of(known.shard);
            known.table = shard.own.known_table(charge.policy)?;
            let Known { table, hash, .. } = *known;
            decisions.push(shard.own.assess(table, hash, charge.key, charge.cost, now)?);
        }
        let mut denials = charges.iter().zip(&decisions);
        let admitted = !denials.any(|(charge, decision)| charge.enforce && decision.denies());
        for ((known, charge), decision) in known.iter().zip(charges).zip(&mut decisions) {
            if decision.denies() {
                continue;
            }
            let (own, Known { table, hash, .. }) = (&mut shards.of(known.shard).own, *known);
            if admitted {
                own.charge(table, hash, charge.key, charge.cost, now);
            } else if let Some(untouched) = own.assess(table, hash, charge.key, Cost::ZERO, now) {
                // Nothing is taken, so what is left is what a request for nothing sees.
                *decision = Decision { outcome: Outcome::Pass, ..untouched };
            }
        }
        Some(Verdict::new(admitted, now, decisions))
    }

    /// Locks shards in the order of their numbers, so that no two requests can wait for
    /// each other.
    pub(crate) fn lock_in_order(&self, numbers: impl Iterator<Item = usize>) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; MOST]> = numbers.collect();
        // Mostly there are two, and in order every other time.
        if !numbers.is_sorted_by(|a, b| a < b) {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let guards = numbers.iter().map(|&number| self.shards[number].lock()).collect();
        Locked { numbers, guards }
    }
}

/// The shards of a request, locked.
pub(crate) struct Locked<'a> {
    numbers: SmallVec<[usize; MOST]>,
    guards: SmallVec<[MutexGuard<'a, Shard>; MOST]>,
}

impl Locked<'_> {
    /// The shard of this number, which is among them.
    #[inline]
    pub(crate) fn of(&mut self, number: usize) -> &mut Shard {
        let index = self.numbers.iter().position(|locked| *locked == number);
        &mut self.guards[index.expect("a request uses the shards that it has locked")]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.guards.iter_mut().map(|guard| &mut **guard)
    }
}

fn names_a_policy_twice(charges: &[Charge<'_>]) -> bool {
    let same = |a: &Charge<'_>, b: &Charge<'_>| {
        a.policy.is_same(b.policy) || a.policy.name() == b.policy.name()
    };
    charges.iter().enumerate().any(|(n, charge)| charges[..n].iter().any(|b| same(charge, b)))
}
