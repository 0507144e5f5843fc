//! Decides a request by assessing all charges first, then charging all or none.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Decision, Micros, Outcome, StoreError, Timestamp, Verdict};

use crate::clock::Clock;
use crate::inner::{Inner, NAME};
use crate::shard::{Seat, Shard};

/// A request's total charge to a key under a policy.
struct Sum<'a> {
    charge: Charge<'a>,
    hash: u64,
    /// The shard's index.
    shard: usize,
}

/// A request's sums, and the index into them for each charge.
type Sums<'a> = (SmallVec<[Sum<'a>; 4]>, SmallVec<[usize; 4]>);

/// A shard's entry, and what the request charges to it in all.
struct Taken<'a> {
    seat: Seat<'a>,
    shard: usize,
    charge: Charge<'a>,
    decision: Decision,
}

impl Taken<'_> {
    /// Decides the charge as at an instant, without making it.
    fn assess(&self, shards: &mut Locked<'_>, at: Timestamp, now: Timestamp) -> Decision {
        let shard = shards.of(self.shard);
        let decision = shard.assess(&self.seat, self.charge.required(), at, now);
        if self.charge.headroom == Cost::ZERO || !decision.allows() {
            return decision;
        }
        shard.assess(&self.seat, self.charge.cost, at, now)
    }

    /// The decision on an allowed charge that is not made: the units that remain without it.
    fn untouched(&self, shards: &mut Locked<'_>, now: Timestamp) -> Decision {
        let untouched = shards.of(self.shard).assess(&self.seat, Cost::ZERO, now, now);
        Decision { outcome: Outcome::WouldAllow, ..untouched }
    }

    /// The first instant at which the charge may leave the queue, if it queues.
    fn leaves_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.queue().and_then(|_| self.decision.leaves_at(now))
    }

    /// How long the charge may queue. A cost of zero is always allowed.
    fn queue(&self) -> Option<Micros> {
        self.charge.queue.filter(|_| self.charge.cost > Cost::ZERO)
    }

    /// Decides a charge that queues until the request leaves.
    fn wait_until(&mut self, shards: &mut Locked<'_>, leaves_at: Timestamp, now: Timestamp) {
        let Some(queue) = self.queue() else { return };
        // A shadow policy delays no request, but its own requests still follow one another.
        let own = self.leaves_at(now).filter(|_| !self.charge.enforce);
        let leaves_at = leaves_at.max(own.unwrap_or(now));
        if leaves_at > now {
            let delay = leaves_at.since(now);
            self.decision = self.assess(shards, leaves_at, now).queued(delay, queue);
        }
    }
}

impl<C: Clock> Inner<C> {
    /// Decides a request with any number of charges, for known and new keys.
    pub(crate) fn decide_all(&self, charges: &[Charge<'_>]) -> Result<Verdict, StoreError> {
        let (sums, sum_of) = self.sums(charges)?;
        let mut shards = self.lock_all(sums.iter().map(|sum| sum.shard).collect());
        let now = self.clock.now();
        shards.iter_mut().for_each(|shard| shard.enter(now));
        // Create all tables before the seats, because seats contain table indices and a new table
        // may replace an idle table.
        for sum in &sums {
            shards.of(sum.shard).own.table(sum.charge.policy, charges);
        }
        let (mut taken, taken_of) = seats(&sums, &mut shards, charges, now);
        for entry in taken.iter_mut().filter(|entry| !entry.charge.dry) {
            entry.decision = entry.assess(&mut shards, now, now);
        }
        let enforced = taken.iter().filter(|entry| entry.charge.enforce);
        let leaves_at = enforced.filter_map(|entry| entry.leaves_at(now)).max().unwrap_or(now);
        for entry in taken.iter_mut().filter(|entry| !entry.charge.dry) {
            entry.wait_until(&mut shards, leaves_at, now);
        }
        let denies = |entry: &Taken<'_>| entry.charge.enforce && entry.decision.denies();
        let admitted = !taken.iter().any(denies);
        if !admitted {
            strike(&sums, &mut taken, &taken_of, &mut shards, now);
        }
        for entry in taken.iter_mut().filter(|it| !it.charge.dry && it.decision.allows()) {
            if !admitted {
                entry.decision = entry.untouched(&mut shards, now);
            } else if let Outcome::Allow { charged_at, delay, .. } = entry.decision.outcome
                && entry.charge.cost > Cost::ZERO
                && !entry.charge.policy.is_penalty()
            {
                let at = if entry.charge.queue.is_some() { now + delay } else { now };
                let shard = shards.of(entry.shard);
                shard.charge(&entry.seat, entry.charge.cost, (at, charged_at), now);
            }
        }
        for entry in taken.iter_mut().filter(|entry| entry.charge.dry) {
            entry.decision = entry.assess(&mut shards, now, now);
            entry.wait_until(&mut shards, now, now);
            if entry.decision.allows() {
                entry.decision = entry.untouched(&mut shards, now);
            }
        }
        for shard in shards.iter_mut() {
            shard.finish();
        }
        let decisions = sum_of.iter().map(|&sum| taken[taken_of[sum]].decision);
        Ok(Verdict::new(admitted, now, decisions))
    }

    /// Locks these shards in index order, so requests cannot deadlock.
    fn lock_all(&self, mut shards: SmallVec<[usize; 4]>) -> Locked<'_> {
        shards.sort_unstable();
        shards.dedup();
        Locked(shards.into_iter().map(|shard| (shard, self.shards[shard].lock())).collect())
    }

    /// Adds up the charges to the same key under the same policy.
    fn sums<'a>(&self, charges: &[Charge<'a>]) -> Result<Sums<'a>, StoreError> {
        let (mut sums, mut sum_of) = (SmallVec::<[Sum<'a>; 4]>::new(), SmallVec::new());
        for charge in charges {
            let shares = |sum: &&Sum<'_>| sum.charge.shares_quota_with(charge);
            if let Some(sum) = sums.iter().find(shares)
                && !sum.charge.policy.shares_state_with(charge.policy)
            {
                let reason = format!(
                    "policy `{}` has two quotas in one request; give each its own name",
                    charge.policy.name().escape_default()
                );
                return Err(StoreError::invalid(NAME, reason));
            }
            let same = |sum: &Sum<'_>| {
                !charge.dry && !sum.charge.dry && sum.charge.shares_quota_with(charge)
            };
            let Some(index) = sums.iter().position(same) else {
                sum_of.push(sums.len());
                let (hash, shard) = self.locate(charge.policy, charge.key);
                sums.push(Sum { charge: *charge, hash, shard });
                continue;
            };
            sums[index].charge.add(charge);
            sum_of.push(index);
        }
        Ok((sums, sum_of))
    }
}

/// A request's locked shards, with their indices.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    /// Returns the shard with this index, which must be locked.
    fn of(&mut self, number: usize) -> &mut Shard {
        let shard = self.0.iter_mut().find(|(locked, _)| *locked == number);
        &mut shard.expect("a request uses the shards that it has locked").1
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.0.iter_mut().map(|(_, guard)| &mut **guard)
    }
}

/// Adds a strike to the penalties for keys that another policy denies, and assesses these penalties
/// again. A key in an overflow entry gets no strike, because that would block unrelated keys.
fn strike(
    sums: &[Sum<'_>],
    taken: &mut [Taken<'_>],
    taken_of: &[usize],
    shards: &mut Locked<'_>,
    now: Timestamp,
) {
    if !sums.iter().any(|sum| sum.charge.policy.counts_denials()) {
        return;
    }
    let denies = |entry: &Taken<'_>| entry.charge.enforce && entry.decision.denies();
    let denied: SmallVec<[_; 4]> = sums
        .iter()
        .zip(taken_of)
        .map(|(sum, &index)| (sum.charge.key, &taken[index]))
        .filter(|(_, entry)| denies(entry) && !entry.charge.policy.is_penalty())
        .map(|(key, _)| key)
        .collect();
    for (sum, &index) in sums.iter().zip(taken_of) {
        let entry = &mut taken[index];
        let Charge { policy, cost, dry, .. } = entry.charge;
        if policy.counts_denials()
            && !dry
            && cost > Cost::ZERO
            && entry.seat.is_own()
            && denied.contains(&sum.charge.key)
        {
            shards.of(entry.shard).strike(&entry.seat, now);
            entry.decision = entry.assess(shards, now, now);
        }
    }
}

/// Finds a request's entries, and the index into them for each sum. Keys in the same overflow entry
/// are assessed with their total cost.
fn seats<'a>(
    sums: &[Sum<'a>],
    shards: &mut Locked<'_>,
    charges: &[Charge<'_>],
    now: Timestamp,
) -> (SmallVec<[Taken<'a>; 4]>, SmallVec<[usize; 4]>) {
    let (mut taken, mut taken_of) = (SmallVec::<[Taken<'a>; 4]>::new(), SmallVec::new());
    for &Sum { charge, hash, shard } in sums {
        // A dry charge takes no units, so it is not counted in `overflowed`.
        let about = if charge.dry { Charge { cost: Cost::ZERO, ..charge } } else { charge };
        let seat = shards.of(shard).seat(&about, hash, charges, now);
        let same = |other: &Taken<'_>| {
            let is_dry = charge.dry || other.charge.dry;
            !is_dry && other.shard == shard && other.seat.shares_entry_with(&seat)
        };
        if let Some(index) = taken.iter().position(same) {
            taken[index].charge.add(&charge);
            taken_of.push(index);
            continue;
        }
        taken_of.push(taken.len());
        taken.push(Taken { seat, shard, charge, decision: Decision::undecided(0) });
    }
    (taken, taken_of)
}
