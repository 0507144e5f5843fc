//! One part of the keys behind one lock, within its bounds.

use foldhash::fast::RandomState;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Receipt, Timestamp, with_rule};

use crate::any_table::Kind;
use crate::part::{Part, Place, Spot};
use crate::voided::Voided;

/// One part of the keys behind one lock, within its bounds.
///
/// Keys without room share one overflow entry per policy. While that entry is live, a new key
/// with room starts with a copy of its state; otherwise a client counted in the overflow entry
/// would get a new quota. Each shard has its own overflow entries. So a flood of keys takes no
/// common lock, and a full shard does not affect new keys of other shards.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) own: Part,
    shared: Part,
    bounds: Bounds,
    /// The number of new keys of the current request for which room is reserved.
    coming: usize,
    /// The number of charges so far that found no room.
    pub(crate) overflowed: u64,
    voided: Voided,
}

/// The maximum size of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
}

/// The entry of one key under one policy, as found for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    spot: Spot<'a>,
    place: Place,
    /// Whether this is the overflow entry.
    shared: bool,
}

/// The key of an overflow entry.
static SHARED: Key = Key::GLOBAL;

/// The number of buckets of each table that are checked for removal when the shard is full. It
/// limits how long a request with a new key holds the lock.
const SWEEP_WHEN_FULL: usize = 32;

impl Shard {
    pub(crate) fn new(bounds: Bounds, hasher: &RandomState) -> Self {
        let part = || Part::new(hasher.clone());
        Self {
            own: part(),
            shared: part(),
            bounds,
            coming: 0,
            overflowed: 0,
            voided: Voided::default(),
        }
    }

    /// Finds the entry of a charge's key, or the place for a new one. `charges` are all charges of
    /// the request.
    pub(crate) fn seat<'a>(
        &mut self,
        charge: &Charge<'a>,
        hash: u64,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Seat<'a> {
        let Charge { policy, key, .. } = *charge;
        let spot = Spot { policy, key, hash, table: self.own.table(policy, charges) };
        let mut place = self.own.find(spot);
        if let Place::Moved { from } = place
            && self.own.is_fresh(from, spot, now)
        {
            // The result must be the same as if this key had been swept already.
            self.own.forget_in(from, spot);
            place = Place::New;
        }
        // Overflow entries are few, so all of them are checked for removal.
        self.shared.sweep(usize::MAX, now);
        let fits = match place {
            Place::Here => true,
            // The key leaves its old table, but may need more room in the new one.
            Place::Moved { .. } => self.makes_room(spot, 0, now),
            Place::New => self.makes_room(spot, 1, now),
        };
        if fits {
            self.coming += usize::from(place == Place::New);
            return Seat { spot, place, shared: false };
        }
        self.overflowed += u64::from(charge.cost > Cost::ZERO);
        let table = self.shared.table(policy, charges);
        let spot = Spot { policy, key: &SHARED, hash: self.shared.hash(&SHARED), table };
        Seat { spot, place: self.shared.find(spot), shared: true }
    }

    /// Ends the reservations of the current request.
    pub(crate) fn finish(&mut self) {
        self.coming = 0;
    }

    /// Whether there is room for this number of new keys. If not, removes expired keys first.
    fn makes_room(&mut self, spot: Spot<'_>, keys: usize, now: Timestamp) -> bool {
        if !self.has_room(spot, keys) {
            self.own.sweep(SWEEP_WHEN_FULL, now);
            self.own.shrink();
        }
        self.has_room(spot, keys)
    }

    fn has_room(&self, spot: Spot<'_>, keys: usize) -> bool {
        self.own.keys() + self.coming + keys <= self.bounds.keys
            && self.own.bytes() + self.own.bytes_of(spot) <= self.bounds.bytes
    }

    /// The version of the policy under which the key has its own state, if any.
    pub(crate) fn holder<'a>(&'a self, seat: &Seat<'a>) -> Option<&'a Policy> {
        match seat.place {
            _ if seat.shared => None,
            Place::Here => Some(seat.spot.policy),
            Place::Moved { from } => Some(self.own.policy(from)),
            Place::New => None,
        }
    }

    /// The version of the policy under which the charge of a receipt can be found, or `None` if
    /// the charge cannot be distinguished from others. Charges to a rate limit are found only in
    /// their own version. Permits keep their dates in a new version and in an overflow entry, and
    /// permits of one date are interchangeable.
    pub(crate) fn teller<'a>(&'a self, seat: &Seat<'a>, receipt: &Receipt) -> Option<&'a Policy> {
        let in_flight = receipt.policy.is_concurrency();
        let held = match seat.place {
            _ if seat.shared && !in_flight => return None,
            Place::Here => seat.spot.policy,
            Place::Moved { from } => self.part(seat).policy(from),
            Place::New => return None,
        };
        let tells = seat.is_here() || (held.is_concurrency() && in_flight);
        (tells && !self.is_void(receipt)).then_some(held)
    }

    /// Removes the state of a key. Earlier receipts become void.
    pub(crate) fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        self.own.forget(policy, key);
        self.voided.insert(self.own.slot(policy, key), now);
    }

    /// Whether the charge of a receipt can no longer be distinguished from others.
    pub(crate) fn is_void(&self, receipt: &Receipt) -> bool {
        let slot = self.own.slot(&receipt.policy, &receipt.key);
        self.voided.contains(slot, receipt.charged.charged_at)
    }

    /// The decision on `cost`, without a charge.
    pub(crate) fn assess(&self, seat: &Seat<'_>, cost: Cost, now: Timestamp) -> Decision {
        with_rule!(seat.spot.policy.rule(), rule => self.assess_as(rule, seat, cost, now))
    }

    fn assess_as<R: Kind>(
        &self,
        rule: &R,
        seat: &Seat<'_>,
        cost: Cost,
        now: Timestamp,
    ) -> Decision {
        let assess = |state: &R::State| rule.assess(rule.refresh(state, now), now, cost);
        match self.part(seat).state::<R>(seat.spot) {
            Some(state) => assess(state),
            None => assess(&self.elsewhere(rule, seat, now)),
        }
    }

    /// Charges a cost that was assessed as allowed.
    pub(crate) fn charge(&mut self, seat: &Seat<'_>, cost: Cost, now: Timestamp) {
        with_rule!(seat.spot.policy.rule(), rule => {
            self.change(rule, seat, now, |state| rule.charge(state, now, cost));
        });
    }

    /// Adds one strike to a penalty.
    pub(crate) fn strike(&mut self, seat: &Seat<'_>, now: Timestamp) {
        with_rule!(seat.spot.policy.rule(), rule => {
            self.change(rule, seat, now, |state| rule.owe(state, 1, now));
        });
    }

    /// Changes the state of a key and stores it in the table of its policy.
    pub(crate) fn change<R: Kind, T>(
        &mut self,
        rule: &R,
        seat: &Seat<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut R::State) -> T,
    ) -> T {
        // The state may have been swept since it was found; then the key is new.
        if let Some(state) = self.part_mut(seat).state_mut::<R>(seat.spot) {
            return change(state);
        }
        let mut state = self.elsewhere(rule, seat, now);
        let result = change(&mut state);
        if let Place::Moved { from } = seat.place
            && !(seat.spot.policy.is_concurrency() && self.part(seat).policy(from).is_concurrency())
        {
            self.voided.insert(self.own.slot(seat.spot.policy, seat.spot.key), now);
        }
        self.part_mut(seat).put::<R>(seat.spot, seat.place, state, now);
        result
    }

    /// The state of a key that is not in the table of its policy.
    fn elsewhere<R: Kind>(&self, rule: &R, seat: &Seat<'_>, now: Timestamp) -> R::State {
        let Spot { policy, key, hash, .. } = seat.spot;
        let found = self.part(seat).read(rule, policy, hash, key, now);
        let shared = || self.shared.read(rule, policy, self.shared.hash(&SHARED), &SHARED, now);
        found.or_else(shared).unwrap_or_else(|| rule.fresh())
    }

    fn part(&self, seat: &Seat<'_>) -> &Part {
        if seat.shared { &self.shared } else { &self.own }
    }

    fn part_mut(&mut self, seat: &Seat<'_>) -> &mut Part {
        if seat.shared { &mut self.shared } else { &mut self.own }
    }
}

impl Seat<'_> {
    /// Whether the key has its own state under the current version of its policy.
    pub(crate) fn is_here(&self) -> bool {
        self.place == Place::Here && !self.shared
    }

    /// Whether the entry belongs to this key alone.
    pub(crate) const fn is_own(&self) -> bool {
        !self.shared
    }

    /// Whether both are the same overflow entry. Other entries appear only once in a request.
    pub(crate) fn shares_entry_with(&self, other: &Self) -> bool {
        self.shared && other.shared && self.spot.policy.name() == other.spot.policy.name()
    }
}
