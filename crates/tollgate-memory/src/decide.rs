//! One request over all its charges: assess all, then charge all or none.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Decision, Key, Outcome, StoreError, Timestamp, Verdict, with_rule,
};

use crate::any_table::Kind;
use crate::shard::{Place, Shard, Spot};
use crate::{Clock, Inner, NAME};

/// The charges of a request to one key under one policy, summed.
struct Seat<'a> {
    spot: Spot<'a>,
    /// Which of the locked shards.
    shard: usize,
    place: Place,
    cost: Cost,
    enforce: bool,
    decision: Decision,
    /// The seat that decides for this one.
    merged_into: Option<usize>,
}

/// The shards of a request, locked in the order of their numbers, so that no two
/// requests can wait for each other; the overflow entries come after all of them.
struct Locked<'a> {
    shards: SmallVec<[MutexGuard<'a, Shard>; 4]>,
    /// The position of the shard with the overflow entries, once it is locked.
    overflow: Option<usize>,
}

/// The key that all share who found no room.
static SHARED: Key = Key::GLOBAL;

impl<C: Clock> Inner<C> {
    /// Decides one request of any number of charges, wherever their keys are.
    pub(crate) fn decide_all(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let (mut seats, seat_of) = self.seats(charges)?;
        let mut locked = self.lock(&mut seats);
        // Tables first: making one may take over an idle one, places refer to them.
        for seat in &mut seats {
            seat.spot.table = locked.shards[seat.shard].table(seat.spot.policy, charges);
        }
        for seat in &mut seats {
            self.take_place(seat, &mut locked, charges, now);
        }
        merge_overflowed(&mut seats, locked.overflow);
        for seat in &mut seats {
            seat.decision = locked.assess(seat, seat.cost, now);
        }
        let admitted = !seats
            .iter()
            .any(|seat| seat.enforce && seat.decision.denies());
        for seat in seats.iter_mut().filter(|seat| seat.decision.allows()) {
            if !admitted {
                // What it would have taken is left, so it says what it would say of nothing.
                let untouched = locked.assess(seat, Cost::ZERO, now);
                seat.decision = Decision {
                    outcome: Outcome::Pass,
                    ..untouched
                };
            } else if seat.cost > Cost::ZERO {
                if Some(seat.shard) == locked.overflow {
                    self.overflow_live.store(true, Ordering::Release);
                }
                locked.charge(seat, now);
            }
        }
        for shard in &mut locked.shards {
            shard.finish();
        }
        let decision = |&seat: &usize| {
            let seat = &seats[seat];
            seat.merged_into
                .map_or(seat.decision, |other| seats[other].decision)
        };
        Ok(Verdict::new(admitted, now, seat_of.iter().map(decision)))
    }

    /// A seat for each key and policy, and the seat of each charge.
    fn seats<'a>(
        &self,
        charges: &'a [Charge<'a>],
    ) -> Result<(SmallVec<[Seat<'a>; 4]>, SmallVec<[usize; 4]>), StoreError> {
        let mut seats = SmallVec::<[Seat<'a>; 4]>::new();
        let mut seat_of = SmallVec::new();
        for charge in charges {
            let shares_key = |seat: &Seat<'_>| {
                seat.spot.key == charge.key && seat.spot.policy.name() == charge.policy.name()
            };
            if let Some(index) = seats.iter().position(shares_key) {
                let seat = &mut seats[index];
                if !seat.spot.policy.shares_state_with(charge.policy) {
                    let reason = format_args!(
                        "policy `{}` is in one request with two quotas; name them apart",
                        charge.policy.name().escape_default()
                    );
                    return Err(StoreError::not_charged(NAME, reason));
                }
                seat.cost = seat.cost.plus(charge.cost);
                seat.enforce |= charge.enforce;
                seat_of.push(index);
                continue;
            }
            seat_of.push(seats.len());
            seats.push(Seat {
                spot: Spot {
                    policy: charge.policy,
                    key: charge.key,
                    hash: self.hash(charge.key),
                    table: 0,
                },
                shard: 0,
                place: Place::New,
                cost: charge.cost,
                enforce: charge.enforce,
                decision: Decision::skipped(0),
                merged_into: None,
            });
        }
        Ok((seats, seat_of))
    }

    fn lock(&self, seats: &mut [Seat<'_>]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> = seats
            .iter()
            .map(|seat| self.shard_number(seat.spot.hash))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        for seat in seats {
            let number = self.shard_number(seat.spot.hash);
            seat.shard = numbers.binary_search(&number).unwrap_or_default();
        }
        Locked {
            shards: numbers
                .iter()
                .map(|&number| self.shards[number].lock())
                .collect(),
            overflow: None,
        }
    }

    /// Finds where the key of a seat is, or goes.
    fn take_place<'a>(
        &'a self,
        seat: &mut Seat<'_>,
        locked: &mut Locked<'a>,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) {
        seat.place = locked.shards[seat.shard].place(seat.spot, now);
        match seat.place {
            Place::Here | Place::Moved { .. } => {}
            // A new key starts as a copy of the overflow entry while that is live, or
            // whoever was counted there would win a fresh quota when room comes.
            Place::New => {
                if self.overflow_live.load(Ordering::Acquire) {
                    self.lock_overflow(locked, now);
                }
            }
            Place::Full => {
                self.overflowed.fetch_add(1, Ordering::Relaxed);
                seat.shard = self.lock_overflow(locked, now);
                let overflow = &mut locked.shards[seat.shard];
                seat.spot.key = &SHARED;
                seat.spot.hash = self.hash(&SHARED);
                seat.spot.table = overflow.table(seat.spot.policy, charges);
                seat.place = overflow.place(seat.spot, now);
            }
        }
    }

    /// Locks the overflow entries, forgets those that are fresh again, and returns
    /// their position.
    fn lock_overflow<'a>(&'a self, locked: &mut Locked<'a>, now: Timestamp) -> usize {
        *locked.overflow.get_or_insert_with(|| {
            let mut overflow = self.overflow.lock();
            overflow.sweep(usize::MAX, now);
            if overflow.keys() == 0 {
                self.overflow_live.store(false, Ordering::Release);
            }
            locked.shards.push(overflow);
            locked.shards.len() - 1
        })
    }
}

/// Keys that found no room share an entry, so that their costs under a policy add up.
fn merge_overflowed(seats: &mut [Seat<'_>], overflow: Option<usize>) {
    for later in 1..seats.len() {
        let (before, seat) = seats.split_at_mut(later);
        let seat = &mut seat[0];
        let shares = |other: &Seat<'_>| {
            Some(other.shard) == overflow && other.spot.policy.shares_state_with(seat.spot.policy)
        };
        if Some(seat.shard) == overflow
            && let Some(first) = before.iter().position(shares)
        {
            before[first].cost = before[first].cost.plus(seat.cost);
            before[first].enforce |= seat.enforce;
            seat.cost = Cost::ZERO;
            seat.merged_into = Some(first);
        }
    }
}

impl Locked<'_> {
    fn assess(&self, seat: &Seat<'_>, cost: Cost, now: Timestamp) -> Decision {
        with_rule!(seat.spot.policy.rule(), rule => self.assess_as(rule, seat, cost, now))
    }

    fn assess_as<R: Kind>(
        &self,
        rule: &R,
        seat: &Seat<'_>,
        cost: Cost,
        now: Timestamp,
    ) -> Decision {
        if seat.place == Place::Here
            && let Some(state) = self.shards[seat.shard].state::<R>(seat.spot)
        {
            return rule.assess(rule.refresh(state, now), now, cost);
        }
        let state = self.state_elsewhere(rule, seat, now);
        rule.assess(rule.refresh(&state, now), now, cost)
    }

    fn charge(&mut self, seat: &Seat<'_>, now: Timestamp) {
        with_rule!(seat.spot.policy.rule(), rule => self.charge_as(rule, seat, now));
    }

    fn charge_as<R: Kind>(&mut self, rule: &R, seat: &Seat<'_>, now: Timestamp) {
        // A fresh state may have been swept since it was found; then the key is new.
        if seat.place == Place::Here
            && let Some(state) = self.shards[seat.shard].state_mut::<R>(seat.spot)
        {
            return rule.charge(state, now, seat.cost);
        }
        let mut state = self.state_elsewhere(rule, seat, now);
        rule.charge(&mut state, now, seat.cost);
        self.shards[seat.shard].put::<R>(seat.spot, seat.place, state, now);
    }

    /// The state of a key that is not in the table of its policy.
    fn state_elsewhere<R: Kind>(&self, rule: &R, seat: &Seat<'_>, now: Timestamp) -> R::State {
        let found = match (seat.place, self.overflow) {
            (Place::Moved { from }, _) => self.shards[seat.shard].moved(rule, from, seat.spot, now),
            (Place::New, Some(overflow)) => {
                self.shards[overflow].shared(rule, seat.spot.policy, now)
            }
            _ => None,
        };
        found.unwrap_or_else(|| rule.fresh())
    }
}
