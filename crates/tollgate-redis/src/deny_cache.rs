//! Denials remembered, so that a flood of denied requests costs Redis nothing.

use std::hash::BuildHasher;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tollgate_core::{Cost, Decision, Micros, Outcome, Policy, Source, Timestamp, Verdict};

use crate::clock::{Clock, Moment};
use crate::names::Name;
use crate::ticket::{Line, Request, Ticket};

/// Remembers keys that have no unit left, and when requests of each cost pass.
///
/// Such a key is *frozen* until the first instant at which one unit fits. Until then no replica
/// can charge it. So the instants at which costs pass and at which the key is fresh again stay
/// where they are, and an answer from here has the numbers that Redis would return. Redis is
/// asked about a key with units left, because another replica may take them.
///
/// The wait for one cost does not tell the wait for another, so Redis is asked once about each.
///
/// A request with several charges is answered from here if all of their keys are known: at least
/// one denies, and each of the others is frozen too or had room for its charge in the last answer
/// of Redis. Other replicas may have charged the keys with room since then. So the answer leaves
/// their policies out ([`Outcome::Undecided`]).
///
/// A frozen key changes all the same where another process settles, resets it or raises the
/// quota, where leased units are returned, and where Redis loses data or its clock steps. This
/// process learns of that late, so it remembers nothing for long. Its own actions it takes into
/// account:
///
/// * a reset clears everything, and answers that were on their way before are not remembered;
/// * after a settlement, the policy is not remembered for the lifetime of a receipt, and a
///   concurrency limit is never remembered: their units may be returned at any time;
/// * a penalty is remembered only while it blocks, since before that it may count the denial;
/// * another quota is another key.
///
/// The end of a freeze counts from before the call was sent, so Redis is asked too early rather
/// than too late. A wait counts from when the answer had come, so a client that obeys it is not
/// early.
#[derive(Debug)]
pub(crate) struct DenyCache {
    /// How long at most; zero for never.
    bound: Duration,
    clock: Clock,
    entries: Mutex<Entries>,
    /// The number of entries. A service that denies no request pays only for reading it.
    count: AtomicUsize,
    /// Goes up with everything that may make a remembered denial wrong.
    epoch: AtomicU64,
    /// The names of policies whose charges are settled, each with the time until which a receipt
    /// may still be settled.
    settling: Mutex<HashMap<String, Moment, RandomState>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Entries {
    table: HashTable<Known>,
    /// When the table was last looked through for entries whose time is over.
    swept: Moment,
}

/// The last answer of Redis about a key.
#[derive(Debug)]
struct Known {
    state: Name,
    policy: Policy,
    /// Redis' time of the call.
    decided_at: Timestamp,
    /// When the answer had come.
    received: Moment,
    /// Until when this stands.
    until: Moment,
    room: Room,
}

#[derive(Debug)]
enum Room {
    /// The number of units that fitted.
    Units(u64),
    /// Not one fits.
    None(Frozen),
}

/// The instants of a frozen key, in Redis' time.
#[derive(Debug)]
struct Frozen {
    /// The first at which one unit fits.
    until: Timestamp,
    fresh_at: Timestamp,
    /// The first at which a request of each cost passes.
    passes: SmallVec<[(Cost, Timestamp); COSTS]>,
}

/// Keys beyond this number share an entry: a flood of different keys must not take unbounded
/// memory.
const MOST: usize = 4096;
/// Different costs of one key that are remembered: as many as requests usually have.
const COSTS: usize = 4;
/// Microseconds between two looks through the table. One takes as long as many a decision: in the
/// flood that filled it, not each denial does. When no one is denied any more it gets empty.
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

    /// A number for the state of this cache when a request is made: its answer is remembered only
    /// if nothing has been forgotten since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The verdict on a request, if it is denied by what is known of its keys.
    pub(crate) fn find(&self, lines: &[Line]) -> Option<Verdict> {
        if self.count.load(Ordering::Relaxed) == 0 || has_twins(lines) {
            return None;
        }
        let now = self.clock.now();
        let entries = self.entries.lock();
        let known = |line: &Line| {
            let hash = self.hasher.hash_one(&line.state);
            entries.table.find(hash, |known| known.is_about(line) && now < known.until)
        };
        let known: SmallVec<[&Known; 2]> = lines.iter().map(known).collect::<Option<_>>()?;
        let at = known.iter().filter_map(|known| known.frozen_at(now)).max()?;
        let said = known.iter().zip(lines).map(|(known, line)| known.say(line, at));
        let decisions: SmallVec<[Decision; 2]> = said.collect::<Option<_>>()?;
        let denies = |(line, decision): (&Line, &Decision)| line.enforce && decision.denies();
        lines
            .iter()
            .zip(&decisions)
            .any(denies)
            .then(|| Verdict::new(false, at, decisions).with_source(Source::Cache))
    }

    /// Stores the denials in the answer to a call, which was sent and answered at these two
    /// moments. `frozen` has the time for which each denying key has no unit left.
    pub(crate) fn learn(
        &self,
        ticket: &Ticket,
        verdict: &Verdict,
        frozen: &[Micros],
        call: Range<Moment>,
    ) {
        let Request::Decide(lines) = &ticket.request else { return };
        let is_news = !verdict.is_admitted() || self.count.load(Ordering::Relaxed) > 0;
        if !is_news || self.bound.is_zero() || self.is_excluded(lines) {
            return;
        }
        let frozen = frozen.iter().copied().chain(iter::repeat(Micros::ZERO));
        let said = || lines.iter().zip(verdict.decisions()).zip(frozen.clone());
        // Without one that denies until a known instant, no answer can be made of the others.
        let makes_entries = said().any(|((line, decision), frozen)| {
            line.enforce && decision.denies() && frozen > Micros::ZERO
        });
        let mut entries = self.entries.lock();
        // Under the lock, as forgetting is.
        if self.epoch() != ticket.epoch {
            return;
        }
        entries.sweep(call.end);
        for ((line, decision), frozen) in said() {
            let known = self.known(line, decision, frozen, verdict.decided_at(), &call);
            let hash = self.hasher.hash_one(&line.state);
            if let Some(before) = entries.table.find_mut(hash, |known| known.is_about(line)) {
                // A request for nothing passes a frozen key too, and tells nothing of it.
                if line.cost > Cost::ZERO || matches!(before.room, Room::Units(_)) {
                    before.renew(known);
                }
            } else if makes_entries && known.until > call.end && entries.table.len() < MOST {
                let rehash = |known: &Known| self.hasher.hash_one(&known.state);
                entries.table.insert_unique(hash, known, rehash);
            }
        }
        self.count.store(entries.table.len(), Ordering::Relaxed);
    }

    fn known(
        &self,
        line: &Line,
        decision: &Decision,
        frozen: Micros,
        decided_at: Timestamp,
        call: &Range<Moment>,
    ) -> Known {
        let room = if frozen > Micros::ZERO {
            let until = decided_at + frozen;
            let mut passes: SmallVec<_> = smallvec![(Cost::ONE, until)];
            if let (Some(wait), true) = (decision.retry_after(), line.cost != Cost::ONE) {
                passes.push((line.cost, decided_at + wait));
            }
            Room::None(Frozen { until, fresh_at: decided_at + decision.reset_after, passes })
        } else if line.policy.is_penalty() {
            // It may count the next denial.
            Room::Units(0)
        } else {
            Room::Units(decision.remaining)
        };
        let mut stands = Micros::from(self.bound);
        // Other replicas return or spend their blocks within a lease's time.
        let lease = line.policy.lease().map(|lease| lease.time_to_live());
        let frozen = Some(frozen).filter(|frozen| *frozen > Micros::ZERO);
        for bound in [lease, frozen].into_iter().flatten() {
            stands = stands.min(bound);
        }
        Known {
            state: line.state.clone(),
            policy: line.policy.clone(),
            decided_at,
            received: call.end,
            until: call.start.saturating_add(stands.get()),
            room,
        }
    }

    /// Forgets everything, as a key is about to be reset or was.
    pub(crate) fn forget(&self) {
        let mut entries = self.entries.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        entries.table.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// Remembers no denial of this policy for the lifetime of a receipt.
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

    /// Whether nothing is to be learnt from a request.
    fn is_excluded(&self, lines: &[Line]) -> bool {
        let is_excluded = |line: &Line| line.dry || line.policy.is_concurrency();
        if lines.iter().any(is_excluded) || has_twins(lines) {
            return true;
        }
        let settling = self.settling.lock();
        !settling.is_empty() && {
            let now = self.clock.now();
            let settles =
                |line: &Line| settling.get(line.policy.name()).is_some_and(|it| *it > now);
            lines.iter().any(settles)
        }
    }
}

impl Entries {
    /// Drops what stands no more, now and then.
    fn sweep(&mut self, now: Moment) {
        let pause = if self.table.len() < MOST { USUALLY } else { WHEN_FULL };
        if now.saturating_sub(self.swept) >= pause {
            self.swept = now;
            self.table.retain(|known| known.until > now);
        }
    }
}

impl Known {
    fn is_about(&self, line: &Line) -> bool {
        self.state == line.state && self.policy.shares_state_with(&line.policy)
    }

    /// The time of Redis, or a little less, if the key is frozen.
    fn frozen_at(&self, now: Moment) -> Option<Timestamp> {
        let passed = Micros::new(now.saturating_sub(self.received));
        matches!(self.room, Room::None(_)).then(|| self.decided_at + passed)
    }

    /// The decision on a charge at an instant, if it is known.
    fn say(&self, line: &Line, at: Timestamp) -> Option<Decision> {
        let (cost, limit) = (line.cost, line.policy.capacity());
        let frozen = match &self.room {
            Room::Units(units) => {
                return (cost.get() <= *units).then(|| Decision::undecided(limit));
            }
            Room::None(frozen) => frozen,
        };
        let outcome = if cost == Cost::ZERO {
            Outcome::WouldAllow
        } else if cost.get() > limit && !line.policy.is_penalty() {
            Outcome::ExceedsCapacity
        } else {
            let (_, passes_at) = frozen.passes.iter().find(|(known, _)| *known == cost)?;
            Outcome::Deny { retry_after: passes_at.since(at) }
        };
        let reset_after = frozen.fresh_at.since(at);
        Some(Decision { outcome, limit, remaining: 0, reset_after })
    }

    /// Takes a later answer in place of this one.
    fn renew(&mut self, mut later: Self) {
        if later.decided_at < self.decided_at {
            // Of two calls under way, the first may be answered last.
            return;
        }
        if let (Room::None(now), Room::None(before)) = (&mut later.room, &self.room)
            && now.until == before.until
            && later.received < self.until
        {
            // No one charged the key in between, so the instants of other costs stand.
            for pass in &before.passes {
                if now.passes.len() < COSTS && now.passes.iter().all(|(cost, _)| *cost != pass.0) {
                    now.passes.push(*pass);
                }
            }
        }
        *self = later;
    }
}

/// Charges to one key are decided by their sum, which costs of each do not tell.
fn has_twins(lines: &[Line]) -> bool {
    lines
        .iter()
        .enumerate()
        .any(|(i, line)| lines[..i].iter().any(|other| other.state == line.state))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;
    use tollgate_core::Quota;

    use super::*;

    /// A cache that remembers for a minute, and its clock.
    fn cache() -> (DenyCache, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(USUALLY));
        let clock = Clock::by_hand(Arc::clone(&time), true);
        (DenyCache::new(Duration::from_secs(60), clock), time)
    }

    fn request(n: usize) -> Ticket {
        let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
        let state = n.to_be_bytes().as_slice().into();
        let line = Line { state, policy, cost: Cost::ONE, enforce: true, dry: false };
        Ticket::new(Request::Decide([line].into_iter().collect()), 0, 0, Instant::now())
    }

    /// Denies a request until the end of the minute.
    fn deny(cache: &DenyCache, n: usize) {
        let now = cache.clock.now();
        let wait = Micros::new(60_000_000);
        let outcome = Outcome::Deny { retry_after: wait };
        let decision = Decision { outcome, ..Decision::undecided(9) };
        let verdict = Verdict::single(false, Timestamp::from_micros(now), decision);
        let mut ticket = request(n);
        ticket.epoch = cache.epoch();
        cache.learn(&ticket, &verdict, &[wait], now..now);
    }

    fn is_remembered(cache: &DenyCache, n: usize) -> bool {
        let ticket = request(n);
        let Request::Decide(lines) = &ticket.request else { return false };
        cache.find(lines).is_some()
    }

    #[test]
    fn a_flood_of_denied_keys_is_not_looked_through_for_each_of_them() {
        let (cache, time) = cache();
        for n in 0..MOST {
            deny(&cache, n);
        }
        assert!(is_remembered(&cache, MOST - 1));
        let swept = || cache.entries.lock().swept;
        let first = swept();
        // There is no room, and that was seen a moment ago.
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
    fn those_whose_time_is_over_make_room() {
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

    #[test]
    fn a_policy_that_settles_is_remembered_again_after_the_lifetime_of_a_receipt() {
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
    fn a_service_where_no_one_is_denied_any_more_pays_a_load() {
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
