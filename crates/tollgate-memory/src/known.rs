//! Fast paths for requests with known keys, and with new keys.

use std::array;

use parking_lot::MutexGuard;
use tollgate_core::{Charge, Cost, Decision, FixedVerdict, Outcome, Timestamp};

use crate::clock::Clock;
use crate::inner::Inner;
use crate::policy_tables::TablePlace;
use crate::shard::Shard;

impl<C: Clock> Inner<C> {
    /// Decides a request whose keys are all in the store.
    ///
    /// Returns `None` without changing state if the request needs [`decide_all`](Self::decide_all).
    /// This is the case if a key is new, if two charges have the same policy and may have to be
    /// summed, if a denial may cause a strike, or if a charge is dry, queues or leaves headroom.
    // Always inlined: a returned decision would be written and then immediately read at a different
    // width, which stalls the processor and takes a quarter of the total time.
    #[inline(always)]
    pub(crate) fn decide_known<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Option<FixedVerdict<N>> {
        if !is_simple(charges) {
            return None;
        }
        let located = self.locate_all(charges);
        // Reading the clock takes as long as the lock, and the processor does both at once.
        let read = self.clock.now();
        let mut shards = self.lock(&located);
        let now = shards.enter(read, &self.clock);
        let mut decisions = [const { Decision::undecided(0) }; N];
        let mut places = [TablePlace::default(); N];
        let mut admitted = true;
        let last = N - 1;
        for n in 0..last {
            let tables = &shards.of(n).own;
            (places[n], decisions[n]) = tables.assess(&charges[n], located[n].0, now)?;
            admitted &= decisions[n].allows() || !charges[n].enforce;
        }
        if admitted {
            // The others admit the request, so the last may be charged when it is locked.
            let tables = &mut shards.of_mut(last).own;
            decisions[last] = tables.decide(&charges[last], located[last].0, now)?;
            admitted = decisions[last].allows() || !charges[last].enforce;
        }
        if N > 1 && !admitted {
            let locked = array::from_fn(|n| (shards.of(n), located[n].0));
            let decisions = deny(charges, locked, now)?;
            return Some(FixedVerdict { admitted: false, decided_at: now, decisions });
        }
        for n in 0..last {
            if decisions[n].allows() && charges[n].cost > Cost::ZERO {
                shards.of_mut(n).own.charge(places[n], &charges[n], now);
            }
        }
        Some(FixedVerdict { admitted, decided_at: now, decisions })
    }

    /// Decides a request with new keys, if it is admitted.
    ///
    /// Returns `None` without changing state if the request is denied, or needs
    /// [`decide_all`](Self::decide_all) for a reason other than its new keys.
    pub(crate) fn admit_new<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Option<FixedVerdict<N>> {
        // A penalty is not charged before a response.
        if !is_simple(charges) || charges.iter().any(|it| it.policy.is_penalty()) {
            return None;
        }
        let located = self.locate_all(charges);
        let read = self.clock.now();
        let mut shards = self.lock(&located);
        let now = shards.enter(read, &self.clock);
        let mut decisions = [const { Decision::undecided(0) }; N];
        let mut places = [const { Place::New(0) }; N];
        let is_admitted = (0..N).all(|n| {
            let (charge, hash) = (&charges[n], located[n].0);
            let known = shards.of(n).own.assess(charge, hash, now);
            let found = match known {
                Some((place, decision)) => Some((Place::Known(place), decision)),
                None => shards
                    .of_mut(n)
                    .assess_new(charge, hash, now)
                    .map(|(table, decision)| (Place::New(table), decision)),
            };
            let Some(found) = found else { return false };
            (places[n], decisions[n]) = found;
            decisions[n].allows() || !charge.enforce
        });
        for (n, charge) in charges.iter().enumerate() {
            let shard = shards.of_mut(n);
            shard.finish();
            if is_admitted && decisions[n].allows() && charge.cost > Cost::ZERO {
                match places[n] {
                    Place::Known(place) => shard.own.charge(place, charge, now),
                    Place::New(table) => shard.charge_new(table, charge, located[n].0, now),
                }
            }
        }
        is_admitted.then_some(FixedVerdict { admitted: true, decided_at: now, decisions })
    }

    /// Each key's hash and shard.
    // A loop, because the closure of `map` would be called instead of inlined.
    #[inline(always)]
    fn locate_all<const N: usize>(&self, charges: &[Charge<'_>; N]) -> [(u64, usize); N] {
        let mut located = [(0, 0); N];
        for n in 0..N {
            located[n] = self.locate(charges[n].policy, charges[n].key);
        }
        located
    }

    /// Locks the located shards in index order, so requests cannot deadlock.
    #[inline(always)]
    fn lock<const N: usize>(&self, located: &[(u64, usize); N]) -> Locked<'_, N> {
        let mut order: [usize; N] = array::from_fn(|n| n);
        order.sort_unstable_by_key(|&n| located[n].1);
        let mut locked = Locked { guards: [const { None }; N], owner: order };
        let mut owner = order[0];
        for n in order {
            if locked.guards[owner].is_none() || located[n].1 != located[owner].1 {
                locked.guards[n] = Some(self.shards[located[n].1].lock());
                owner = n;
            }
            locked.owner[n] = owner;
        }
        locked
    }
}

/// Where a charge's state is, or will be.
#[derive(Clone, Copy)]
enum Place {
    Known(TablePlace),
    /// In the table with this index. The key is new.
    New(usize),
}

/// The locked shards of a request's charges. Several charges may share a shard.
struct Locked<'a, const N: usize> {
    guards: [Option<MutexGuard<'a, Shard>>; N],
    /// For each charge, the charge that holds its shard's guard.
    owner: [usize; N],
}

impl<const N: usize> Locked<'_, N> {
    /// Returns the time of a request that `read` the clock just before it locked its shards.
    #[inline(always)]
    fn enter(&mut self, read: Timestamp, clock: &impl Clock) -> Timestamp {
        let mut guards = self.guards.iter().flatten();
        // Another request has decided since, so time would step back between their decisions.
        let is_early = guards.any(|shard| shard.is_after(read));
        let now = if is_early { clock.now() } else { read };
        self.guards.iter_mut().flatten().for_each(|shard| shard.enter(now));
        now
    }

    #[inline(always)]
    fn of(&self, charge: usize) -> &Shard {
        self.guards[self.owner[charge]].as_deref().expect(OWNED)
    }

    #[inline(always)]
    fn of_mut(&mut self, charge: usize) -> &mut Shard {
        self.guards[self.owner[charge]].as_deref_mut().expect(OWNED)
    }
}

/// The reason that a charge has a guard.
const OWNED: &str = "an owner holds its shard's guard";

/// Decides a request that an enforced policy denies. It is not charged, so the policies that allow
/// it report the units that remain without it.
#[cold]
#[inline(never)]
fn deny<const N: usize>(
    charges: &[Charge<'_>; N],
    located: [(&Shard, u64); N],
    now: Timestamp,
) -> Option<[Decision; N]> {
    let mut decisions = [const { Decision::undecided(0) }; N];
    for ((decision, charge), (shard, hash)) in decisions.iter_mut().zip(charges).zip(located) {
        (_, *decision) = shard.own.assess(charge, hash, now)?;
        if decision.allows() {
            let untouched = Charge { cost: Cost::ZERO, ..*charge };
            let (_, untouched) = shard.own.assess(&untouched, hash, now)?;
            *decision = Decision { outcome: Outcome::WouldAllow, ..untouched };
        }
    }
    Some(decisions)
}

/// Whether a request's charges do not depend on one another, except that all are made or none.
#[inline(always)]
fn is_simple<const N: usize>(charges: &[Charge<'_>; N]) -> bool {
    // Loops, because the closures of `any` would be called instead of inlined.
    for n in 0..N {
        let policy = charges[n].policy;
        if !charges[n].is_plain() || (N > 1 && policy.counts_denials()) {
            return false;
        }
        for other in &charges[..n] {
            // They may have the same policy. Different names rarely have the same hash.
            if other.policy.name_hash() == policy.name_hash() {
                return false;
            }
        }
    }
    true
}
