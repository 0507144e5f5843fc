//! One part of the keys behind one lock, within its bounds.

use foldhash::fast::RandomState;
use tollgate_core::algorithm::Rule;
use tollgate_core::{Charge, Cost, Decision, Key, Policy, Receipt, Timestamp, with_rule};

use crate::any_table::Kind;
use crate::part::{Part, Place, Spot};
use crate::voided::Voided;

/// One part of the keys behind one lock, within its bounds.
///
/// Keys that find no room share an entry per policy. While that is live, a new key
/// that does find room starts as a copy of it, or whoever was counted there would win
/// a fresh quota. Each shard has such entries of its own: so a flood of keys takes no
/// lock that others need, and a shard that happens to fill before the others leaves
/// their new keys alone.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) own: Part,
    shared: Part,
    bounds: Bounds,
    /// New keys of the request at hand, which have been promised room.
    coming: usize,
    /// Requests for units so far that found no room.
    pub(crate) overflowed: u64,
    voided: Voided,
}

/// What a shard may hold at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
}

/// What a request takes of one key under one policy, and where that key is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    spot: Spot<'a>,
    place: Place,
    /// Whether it is the entry of all keys without room.
    shared: bool,
}

/// Under this key stands the entry that all keys without room share.
static SHARED: Key = Key::GLOBAL;

/// Buckets of each table looked at for something to forget when the shard is full. It
/// bounds what each request of a flood of new keys costs the others behind the lock.
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

    /// Finds where the key of a charge is, or would go. `charges` are all of the request.
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
            // Whether it was swept before or not must make no difference.
            self.own.forget_in(from, spot);
            place = Place::New;
        }
        // There are few shared entries, and mostly none: look whether they still count.
        self.shared.sweep(usize::MAX, now);
        let fits = match place {
            Place::Here => true,
            // It will leave its other table, but may be larger in this one.
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

    /// The request at hand has what it was promised.
    pub(crate) fn finish(&mut self) {
        self.coming = 0;
    }

    /// Whether there is room for so many keys more, if need be by forgetting others.
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

    /// The policy under which the state of a key is kept now, if it has one of its own.
    pub(crate) fn holder<'a>(&'a self, seat: &Seat<'a>) -> Option<&'a Policy> {
        match seat.place {
            _ if seat.shared => None,
            Place::Here => Some(seat.spot.policy),
            Place::Moved { from } => Some(self.own.policy(from)),
            Place::New => None,
        }
    }

    /// The policy under which the charge of a receipt is kept, if it can still be told from
    /// others: under its own, or where what is in flight was carried over with its dates. Of
    /// what is in flight without room all units of a date are alike, and in one entry.
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

    /// Forgets what a key has used. Receipts from before then are void.
    pub(crate) fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        self.own.forget(policy, key);
        self.voided.insert(self.own.slot(policy, key), now);
    }

    /// Whether a receipt can no longer be told from the charges of others.
    pub(crate) fn is_void(&self, receipt: &Receipt) -> bool {
        let slot = self.own.slot(&receipt.policy, &receipt.key);
        self.voided.contains(slot, receipt.charged.charged_at)
    }

    /// What the policy says about `cost`.
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

    /// Charges what was assessed as allowed.
    pub(crate) fn charge(&mut self, seat: &Seat<'_>, cost: Cost, now: Timestamp) {
        with_rule!(seat.spot.policy.rule(), rule => {
            self.change(rule, seat, now, |state| rule.charge(state, now, cost));
        });
    }

    /// Strikes a penalty once.
    pub(crate) fn strike(&mut self, seat: &Seat<'_>, now: Timestamp) {
        with_rule!(seat.spot.policy.rule(), rule => {
            self.change(rule, seat, now, |state| rule.owe(state, 1, now));
        });
    }

    /// Changes the state of a key, wherever it is, and puts it where it belongs.
    pub(crate) fn change<R: Kind, T>(
        &mut self,
        rule: &R,
        seat: &Seat<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut R::State) -> T,
    ) -> T {
        // A fresh state may have been swept since it was found; then the key is new.
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
    /// Whether the key was found, with a state of its own, under this very version of
    /// its policy.
    pub(crate) fn is_here(&self) -> bool {
        self.place == Place::Here && !self.shared
    }

    /// Whether the entry is that of this key alone.
    pub(crate) const fn is_own(&self) -> bool {
        !self.shared
    }

    /// Whether both are one entry: the shared one of a policy, as one request names a
    /// policy and key of its own once.
    pub(crate) fn shares_entry_with(&self, other: &Self) -> bool {
        self.shared && other.shared && self.spot.policy.name() == other.spot.policy.name()
    }
}
