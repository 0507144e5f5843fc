//! Remembers denials, so a flood of denied requests does not load Redis.

use std::hash::BuildHasher;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, Outcome, Policy, Source, Timestamp, Verdict,
};

use crate::clock::{Clock, Moment};
use crate::ticket::{OwnedCharge, Request, Ticket};

/// Remembers keys without a remaining unit, and when requests of each cost will be allowed.
///
/// Such a key is *frozen* until the first instant at which one unit fits. Until then no replica can
/// charge it, so the instants at which it allows a cost, or is fresh again, do not change. An
/// answer from here therefore has the numbers that Redis would return. Keys with units left are
/// always decided in Redis, because another replica may take the units.
///
/// Costs have different waits, so Redis is queried once for each cost.
///
/// A request with several charges is answered from here if all its keys are known: at least one
/// denies, and each other key is frozen too or had room for its charge in Redis' last answer. Other
/// replicas may have charged the keys with room since then, so the answer omits their policies
/// ([`Outcome::Undecided`]).
///
/// A frozen key does change if another process settles, resets it or raises the quota, if leased
/// units are returned, or if Redis loses data or its clock steps. This process learns of these
/// late, so it only remembers a denial for a short time. It accounts for its own actions:
///
/// * a reset clears everything, and answers that were on their way before are not remembered;
/// * after a settlement, the policy is not remembered for a receipt's lifetime, and a concurrency
///   limit is never remembered: their units may be returned at any time;
/// * a penalty is only remembered while it blocks, because before that it may count the denial;
/// * another quota is another key.
///
/// A freeze is timed from before the call was sent, so Redis is queried too early rather than too
/// late. A wait is timed from when the answer arrived, so a client that obeys it is not early.
#[derive(Debug)]
pub(crate) struct DenyCache {
    /// The longest time to remember a denial; zero turns the cache off.
    bound: Duration,
    clock: Clock,
    entries: Mutex<Entries>,
    /// The number of entries. A service that denies no requests only pays for reading it.
    count: AtomicUsize,
    /// Incremented by everything that may make a remembered denial wrong.
    epoch: AtomicU64,
    /// The names of policies with settlements, each with the time until which a receipt may still
    /// be settled.
    settling: Mutex<HashMap<String, Moment, RandomState>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Entries {
    table: HashTable<Known>,
    /// When expired entries were last removed.
    swept: Moment,
}

/// Redis' last answer about a key.
#[derive(Debug)]
struct Known {
    key: Key,
    policy: Policy,
    /// Redis' time of the call.
    decided_at: Timestamp,
    /// When the answer arrived.
    received: Moment,
    /// When this entry expires.
    until: Moment,
    room: Room,
}

#[derive(Debug)]
enum Room {
    /// The number of units that fitted.
    Units(u64),
    /// No unit fits.
    None(Frozen),
}

/// A frozen key's instants, in Redis' time.
#[derive(Debug)]
struct Frozen {
    /// The first instant at which one unit fits.
    until: Timestamp,
    fresh_at: Timestamp,
    /// The first instant at which the key allows each cost.
    passes: SmallVec<[(Cost, Timestamp); COSTS]>,
}

/// The maximum number of entries. Further keys are not remembered, because a flood of different
/// keys must not use unbounded memory.
const MOST: usize = 4096;
/// The longest remembered key in bytes, for the same reason.
const LONGEST: usize = 256;
/// The maximum number of costs remembered per key, which covers most services.
const COSTS: usize = 4;
/// Microseconds between two sweeps. A sweep takes as long as many decisions, so during the flood
/// that filled the table, most denials must not sweep. After the flood, the sweeps empty the table.
const USUALLY: Moment = 1_000_000;
const WHEN_FULL: Moment = 20_000;

impl DenyCache {
    pub(crate) fn new(bound: Duration, clock: Clock) -> Self {
        Self {
            bound,
            clock,
            entries: Mutex::default(),
            count: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            settling: Mutex::default(),
            hasher: RandomState::default(),
        }
    }

    /// Returns the epoch to store in a new request: its answer is only remembered if the cache has
    /// not been cleared since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the verdict on a request, if its keys are known to deny it.
    pub(crate) fn find(&self, charges: &[Charge<'_>]) -> Option<Verdict> {
        if self.count.load(Ordering::Relaxed) == 0 || has_twins(charges) {
            return None;
        }
        let now = self.clock.now();
        let entries = self.entries.lock();
        let known = |charge: &Charge<'_>| {
            let hash = self.hash(charge.key, charge.policy);
            entries.table.find(hash, |known| known.is_about(charge) && now < known.until)
        };
        let known: SmallVec<[&Known; 2]> = charges.iter().map(known).collect::<Option<_>>()?;
        let at = known.iter().filter_map(|known| known.frozen_at(now)).max()?;
        let said = known.iter().zip(charges).map(|(known, charge)| known.say(charge, at));
        let decisions: SmallVec<[Decision; 2]> = said.collect::<Option<_>>()?;
        let denies =
            |(charge, decision): (&Charge<'_>, &Decision)| charge.enforce && decision.denies();
        charges
            .iter()
            .zip(&decisions)
            .any(denies)
            .then(|| Verdict::new(false, at, decisions).with_source(Source::Cache))
    }

    /// Stores the denials in a call's answer. `call` spans from sending to receiving, and `frozen`
    /// is how long each denying key has no unit left.
    pub(crate) fn learn(
        &self,
        ticket: &Ticket,
        verdict: &Verdict,
        frozen: &[Micros],
        call: Range<Moment>,
    ) {
        let Request::Decide(charges) = &ticket.request else { return };
        let is_news = !verdict.is_admitted() || self.count.load(Ordering::Relaxed) > 0;
        if !is_news || self.bound.is_zero() {
            return;
        }
        let charges: SmallVec<[_; 2]> = charges.iter().map(OwnedCharge::as_charge).collect();
        if self.is_excluded(&charges) {
            return;
        }
        let frozen = frozen.iter().copied().chain(iter::repeat(Micros::ZERO));
        let said = || charges.iter().zip(verdict.decisions()).zip(frozen.clone());
        // An entry only helps if some policy is known to deny until an instant.
        let makes_entries = said().any(|((charge, decision), frozen)| {
            charge.enforce && decision.denies() && frozen > Micros::ZERO
        });
        let mut entries = self.entries.lock();
        // Checked under the lock, because `forget` increments the epoch under it.
        if self.epoch() != ticket.epoch {
            return;
        }
        entries.sweep(call.end);
        for ((charge, decision), frozen) in said() {
            let known = self.known(charge, decision, frozen, verdict.decided_at(), &call);
            let hash = self.hash(charge.key, charge.policy);
            if let Some(before) = entries.table.find_mut(hash, |known| known.is_about(charge)) {
                // A request with zero cost passes a frozen key too, so its answer does not show
                // that the key thawed.
                if charge.cost > Cost::ZERO || matches!(before.room, Room::Units(_)) {
                    before.renew(known);
                }
            } else if makes_entries && known.until > call.end && entries.table.len() < MOST {
                let rehash = |known: &Known| self.hash(&known.key, &known.policy);
                entries.table.insert_unique(hash, known, rehash);
            }
        }
        self.count.store(entries.table.len(), Ordering::Relaxed);
    }

    fn hash(&self, key: &Key, policy: &Policy) -> u64 {
        self.hasher.hash_one((key, policy.name()))
    }

    fn known(
        &self,
        charge: &Charge<'_>,
        decision: &Decision,
        frozen: Micros,
        decided_at: Timestamp,
        call: &Range<Moment>,
    ) -> Known {
        let room = if frozen > Micros::ZERO {
            let until = decided_at + frozen;
            let mut passes: SmallVec<_> = smallvec![(Cost::ONE, until)];
            if let (Some(wait), true) = (decision.retry_after(), charge.cost != Cost::ONE) {
                passes.push((charge.cost, decided_at + wait));
            }
            Room::None(Frozen { until, fresh_at: decided_at + decision.reset_after, passes })
        } else if charge.policy.is_penalty() {
            // A penalty may count the next denial, so it never has room.
            Room::Units(0)
        } else {
            Room::Units(decision.remaining)
        };
        let mut stands = Micros::from(self.bound);
        // Other replicas return or spend their blocks within the lease time.
        let lease = charge.policy.lease().map(|lease| lease.time_to_live());
        let frozen = Some(frozen).filter(|frozen| *frozen > Micros::ZERO);
        for bound in [lease, frozen].into_iter().flatten() {
            stands = stands.min(bound);
        }
        Known {
            key: charge.key.clone(),
            policy: charge.policy.clone(),
            decided_at,
            received: call.end,
            until: call.start.saturating_add(stands.get()),
            room,
        }
    }

    /// Clears the cache, before and after a key is reset.
    pub(crate) fn forget(&self) {
        let mut entries = self.entries.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        entries.table.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// Stops remembering this policy's denials for a receipt's lifetime.
    pub(crate) fn exclude(&self, policy: &str, lifetime: Micros) {
        let now = self.clock.now();
        let until = now.saturating_add(lifetime.get());
        let mut settling = self.settling.lock();
        if let Some(before) = settling.get_mut(policy)
            && *before > now
        {
            *before = until.max(*before);
            return;
        }
        settling.retain(|_, until| *until > now);
        settling.insert(policy.to_owned(), until);
        drop(settling);
        self.forget();
    }

    /// Whether a request's answer must not be remembered.
    fn is_excluded(&self, charges: &[Charge<'_>]) -> bool {
        let is_excluded = |charge: &Charge<'_>| {
            charge.dry || charge.policy.is_concurrency() || charge.key.as_bytes().len() > LONGEST
        };
        if charges.iter().any(is_excluded) || has_twins(charges) {
            return true;
        }
        let settling = self.settling.lock();
        !settling.is_empty() && {
            let now = self.clock.now();
            let until = |charge: &Charge<'_>| settling.get(charge.policy.name());
            charges.iter().filter_map(until).any(|until| *until > now)
        }
    }
}

impl Entries {
    /// Removes expired entries, if the last sweep is long enough ago.
    fn sweep(&mut self, now: Moment) {
        let pause = if self.table.len() < MOST { USUALLY } else { WHEN_FULL };
        if now.saturating_sub(self.swept) >= pause {
            self.swept = now;
            self.table.retain(|known| known.until > now);
        }
    }
}

impl Known {
    fn is_about(&self, charge: &Charge<'_>) -> bool {
        self.key == *charge.key && self.policy.shares_state_with(charge.policy)
    }

    /// Returns Redis' current time, or slightly less, if the key is frozen.
    fn frozen_at(&self, now: Moment) -> Option<Timestamp> {
        let passed = Micros::new(now.saturating_sub(self.received));
        matches!(self.room, Room::None(_)).then(|| self.decided_at + passed)
    }

    /// Returns the decision on a charge at an instant, if it is known.
    fn say(&self, charge: &Charge<'_>, at: Timestamp) -> Option<Decision> {
        let (cost, limit) = (charge.cost, charge.policy.capacity());
        let frozen = match &self.room {
            Room::Units(units) => {
                return (cost.get() <= *units).then(|| Decision::undecided(limit));
            }
            Room::None(frozen) => frozen,
        };
        let outcome = if cost == Cost::ZERO {
            Outcome::WouldAllow
        } else if cost.get() > limit && !charge.policy.is_penalty() {
            Outcome::ExceedsCapacity
        } else {
            let (_, passes_at) = frozen.passes.iter().find(|(known, _)| *known == cost)?;
            Outcome::Deny { retry_after: passes_at.since(at) }
        };
        let reset_after = frozen.fresh_at.since(at);
        Some(Decision { outcome, limit, remaining: 0, reset_after })
    }

    /// Replaces this entry with a later answer.
    fn renew(&mut self, mut later: Self) {
        if later.decided_at < self.decided_at {
            // If two calls were in flight, the first may be answered last.
            return;
        }
        if let (Room::None(now), Room::None(before)) = (&mut later.room, &self.room)
            && now.until == before.until
            && later.received < self.until
        {
            // The key was not charged in between, so the instants for other costs remain valid. They
            // are not remembered for longer, because another process may have settled a charge.
            for pass in &before.passes {
                if now.passes.len() < COSTS && now.passes.iter().all(|(cost, _)| *cost != pass.0) {
                    now.passes.push(*pass);
                    later.until = later.until.min(self.until);
                }
            }
        }
        *self = later;
    }
}

/// Whether two charges have the same key. They are decided by their sum, which is not a known cost.
fn has_twins(charges: &[Charge<'_>]) -> bool {
    let mut charges = charges.iter().enumerate().map(|(i, charge)| (charge, &charges[..i]));
    charges.any(|(charge, others)| others.iter().any(|other| other.shares_quota_with(charge)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;
    use tollgate_core::Quota;

    use super::*;
    use crate::names::Name;

    /// A cache that remembers for a minute, and its clock.
    fn cache() -> (DenyCache, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(USUALLY));
        let clock = Clock::by_hand(Arc::clone(&time), true);
        (DenyCache::new(Duration::from_secs(60), clock), time)
    }

    fn request(n: usize) -> Ticket {
        costing(n, Cost::ONE)
    }

    fn costing(n: usize, cost: Cost) -> Ticket {
        let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
        ticket(&Charge::new(&policy, &Key::new(n.to_be_bytes()), cost))
    }

    fn ticket(charge: &Charge<'_>) -> Ticket {
        let charge = OwnedCharge::new(Name::new(), charge);
        Ticket::new(Request::Decide([charge].into_iter().collect()), 0, 0, Instant::now())
    }

    /// Denies a request until a minute from now.
    fn deny(cache: &DenyCache, n: usize) {
        deny_for(cache, request(n), Micros::new(60_000_000));
    }

    fn deny_for(cache: &DenyCache, mut ticket: Ticket, wait: Micros) {
        ticket.epoch = cache.epoch();
        learn(cache, &ticket, wait);
    }

    fn learn(cache: &DenyCache, ticket: &Ticket, wait: Micros) {
        let now = cache.clock.now();
        let outcome = Outcome::Deny { retry_after: wait };
        let decision = Decision { outcome, ..Decision::undecided(9) };
        let verdict = Verdict::single(false, Timestamp::from_micros(now), decision);
        cache.learn(ticket, &verdict, &[wait], now..now);
    }

    fn is_remembered(cache: &DenyCache, n: usize) -> bool {
        remembers(cache, &request(n))
    }

    fn remembers(cache: &DenyCache, ticket: &Ticket) -> bool {
        let Request::Decide(charges) = &ticket.request else { return false };
        let charges: Vec<_> = charges.iter().map(OwnedCharge::as_charge).collect();
        cache.find(&charges).is_some()
    }

    #[test]
    fn denial_in_flight_during_a_reset_is_not_remembered() {
        let (cache, _) = cache();
        let mut ticket = request(1);
        ticket.epoch = cache.epoch();
        cache.forget();
        learn(&cache, &ticket, Micros::new(60_000_000));
        assert!(!is_remembered(&cache, 1));
        deny(&cache, 1);
        assert!(is_remembered(&cache, 1));
    }

    #[test]
    fn full_cache_sweeps_rarely() {
        let (cache, time) = cache();
        for n in 0..MOST {
            deny(&cache, n);
        }
        assert!(is_remembered(&cache, MOST - 1));
        let swept = || cache.entries.lock().swept;
        let first = swept();
        // The table is full, and was swept a moment ago.
        for n in MOST..MOST + 100 {
            deny(&cache, n);
            assert!(swept() == first && !is_remembered(&cache, n));
            time.fetch_add(WHEN_FULL / 100 - 1, Ordering::SeqCst);
        }
        time.fetch_add(WHEN_FULL, Ordering::SeqCst);
        deny(&cache, MOST);
        assert_eq!(swept(), cache.clock.now());
    }

    #[test]
    fn expired_entries_make_room() {
        let (cache, time) = cache();
        for n in 0..MOST {
            deny(&cache, n);
        }
        time.fetch_add(59_999_999, Ordering::SeqCst);
        assert!(is_remembered(&cache, 0));
        time.fetch_add(1, Ordering::SeqCst);
        assert!(!is_remembered(&cache, 0));
        deny(&cache, MOST);
        assert!(is_remembered(&cache, MOST));
        assert_eq!(cache.entries.lock().table.len(), 1);
    }

    /// Another process may have changed the wait for the larger cost only, with a settlement.
    #[test]
    fn asking_again_does_not_prolong_other_waits() {
        let (cache, time) = cache();
        let two = || costing(0, Cost::new(2));
        deny_for(&cache, two(), Micros::new(120_000_000));
        time.fetch_add(59_999_999, Ordering::SeqCst);
        deny_for(&cache, request(0), Micros::new(60_000_001));
        assert!(is_remembered(&cache, 0) && remembers(&cache, &two()));
        time.fetch_add(1, Ordering::SeqCst);
        assert!(!remembers(&cache, &two()));
    }

    #[test]
    fn exclusion_ends_with_receipt_lifetime() {
        let (cache, time) = cache();
        deny(&cache, 0);
        cache.exclude("p", Micros::new(1_000));
        assert!(!is_remembered(&cache, 0));
        time.fetch_add(500, Ordering::SeqCst);
        cache.exclude("p", Micros::new(1_000));
        time.fetch_add(999, Ordering::SeqCst);
        deny(&cache, 0);
        assert!(!is_remembered(&cache, 0));
        time.fetch_add(1, Ordering::SeqCst);
        deny(&cache, 0);
        assert!(is_remembered(&cache, 0));
    }

    #[test]
    fn long_keys_are_not_remembered() {
        let (cache, _) = cache();
        let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
        for (bytes, is_kept) in [(LONGEST, true), (LONGEST + 1, false)] {
            let key = Key::new(vec![b'k'; bytes]);
            let denied = || ticket(&Charge::new(&policy, &key, Cost::ONE));
            deny_for(&cache, denied(), Micros::new(60_000_000));
            assert_eq!(remembers(&cache, &denied()), is_kept, "{bytes} bytes");
        }
    }

    #[test]
    fn cache_empties_without_denials() {
        let (cache, time) = cache();
        deny(&cache, 0);
        time.fetch_add(60_000_000, Ordering::SeqCst);
        let now = cache.clock.now();
        let decision = Decision { outcome: Outcome::WouldAllow, ..Decision::undecided(9) };
        let verdict = Verdict::single(true, Timestamp::from_micros(now), decision);
        cache.learn(&request(1), &verdict, &[], now..now);
        assert_eq!(cache.count.load(Ordering::Relaxed), 0);
    }
}
