//! Remembers denials, so a flood of denied requests does not load Redis.
//!
//! | file | contains |
//! |---|---|
//! | `known.rs` | Redis' last answer about a key, and the decisions that follow from it |
//! | `recent.rs` | which keys denied a request with charges in several slots |

mod known;
mod recent;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Decision, Key, Micros, Policy, Source, Verdict};

use self::known::{Known, Room};
pub(crate) use self::recent::RecentDenials;
use crate::calls::ticket::{NamedCharge, Request, Ticket};
use crate::clock::{Clock, Moment};
use crate::sync::Mutex;

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
/// ([`Undecided`](tollgate_core::Outcome::Undecided)).
///
/// A frozen key does change if another process settles, resets it or raises the quota, if leased
/// units are returned, or if Redis loses data or its clock steps. This process learns of these
/// late, so it only remembers a denial for a short time. It accounts for its own actions:
///
/// * a reset forgets its key, and answers about it that were on their way before are not remembered;
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
    /// The epoch since which no denial was forgotten, for all keys and for the keys with each hash.
    cleared: AtomicU64,
    resets: Box<[AtomicU64; RESETS]>,
    /// The names of policies with settlements, each with the time until which a receipt may still
    /// be settled.
    settling: Mutex<HashMap<String, Moment, RandomState>>,
    hasher: RandomState,
    /// For requests with charges in several slots.
    pub(crate) recent: RecentDenials,
}

#[derive(Debug, Default)]
struct Entries {
    table: HashTable<Known>,
    /// When expired entries were last removed.
    swept: Moment,
}

/// The longest time to remember a denial by default.
pub(crate) const DEFAULT_BOUND: Duration = Duration::from_secs(1);

/// The maximum number of entries. Further keys are not remembered, because a flood of different
/// keys must not use unbounded memory.
const MOST: usize = 4096;
/// The longest remembered key in bytes, for the same reason.
const LONGEST: usize = 256;
/// Keys that share a number lose answers on their way when one of them is reset.
const RESETS: usize = 1024;
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
            cleared: AtomicU64::new(0),
            resets: Box::new([const { AtomicU64::new(0) }; RESETS]),
            settling: Mutex::default(),
            hasher: RandomState::default(),
            recent: RecentDenials::default(),
        }
    }

    /// Returns the epoch to store in a new request: its answer is only remembered if no denial of its
    /// keys has been forgotten since.
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
        let charges: SmallVec<[_; 2]> = charges.iter().map(NamedCharge::as_charge).collect();
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
        // Checked under the lock, under which denials are forgotten.
        if self.cleared.load(Ordering::Relaxed) > ticket.epoch {
            return;
        }
        entries.sweep(call.end);
        for ((charge, decision), frozen) in said() {
            let at = verdict.decided_at();
            let known = Known::new(charge, decision, frozen, at, &call, self.bound);
            let hash = self.hash(charge.key, charge.policy);
            if self.last_reset(hash).load(Ordering::Relaxed) > ticket.epoch {
                continue;
            }
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

    /// The hash of a key under all policies of this name.
    pub(crate) fn hash(&self, key: &Key, policy: &Policy) -> u64 {
        self.hasher.hash_one((key, policy.name()))
    }

    fn last_reset(&self, hash: u64) -> &AtomicU64 {
        &self.resets[hash as usize % RESETS]
    }

    /// Clears the cache.
    fn forget(&self) {
        let mut entries = self.entries.lock();
        self.cleared.store(self.next_epoch(), Ordering::Relaxed);
        entries.table.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// Forgets the denials of a key with this [hash](Self::hash), before and after it is reset.
    pub(crate) fn forget_key(&self, hash: u64) {
        let mut entries = self.entries.lock();
        self.last_reset(hash).store(self.next_epoch(), Ordering::Relaxed);
        let is_meant = |known: &Known| self.hash(&known.key, &known.policy) == hash;
        while let Ok(entry) = entries.table.find_entry(hash, is_meant) {
            entry.remove();
        }
        self.count.store(entries.table.len(), Ordering::Relaxed);
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
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
            !charge.is_plain()
                || charge.policy.is_concurrency()
                || charge.key.as_bytes().len() > LONGEST
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

/// Whether two charges have the same key. They are decided by their sum, which is not a known cost.
fn has_twins(charges: &[Charge<'_>]) -> bool {
    let mut charges = charges.iter().enumerate().map(|(i, charge)| (charge, &charges[..i]));
    charges.any(|(charge, others)| others.iter().any(|other| other.shares_quota_with(charge)))
}
