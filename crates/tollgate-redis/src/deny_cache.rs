//! Denials remembered, so that a flood of denied requests costs Redis nothing.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::{HashSet, HashTable};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::{Decision, Micros, Outcome, Source, Verdict};

use crate::ticket::{Line, Request, Ticket};

/// Remembers verdicts that denied, until the first of their denials could pass.
///
/// Until then a request for the same charges, or dearer ones where it was denied, is
/// denied without asking. That is what Redis would say, unless meanwhile someone else
/// gave units back, reset the key or raised the quota, or Redis lost data: of that this
/// process knows nothing, so nothing is remembered for long. What this process does
/// itself it knows:
///
/// * a reset makes it forget everything, and answers that were on their way before are
///   not remembered;
/// * a policy that settles is never remembered, from its first receipt on, and one that
///   counts in flight not at all: units come back at any time;
/// * a denial that a penalty counts is not remembered until the penalty blocks;
/// * another quota is another request.
///
/// Time counts from before the call was sent, by the clock of this process alone: Redis
/// decided later than that, so what is remembered ends too early rather than too late.
#[derive(Debug)]
pub(crate) struct DenyCache {
    /// How long at most; zero for never.
    bound: Duration,
    entries: Mutex<Entries>,
    /// The number of entries, so that a service where nobody is denied pays a load.
    count: AtomicUsize,
    /// Goes up with everything that may make a remembered denial wrong.
    epoch: AtomicU64,
    /// The names of policies that settle.
    settling: Mutex<HashSet<String, RandomState>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Entries {
    table: HashTable<Denied>,
    /// When a full table was last looked through for entries whose time is over.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Denied {
    lines: SmallVec<[Line; 2]>,
    verdict: Verdict,
    /// When the call was sent that brought the verdict.
    sent: Instant,
    until: Instant,
}

/// More denied requests than this are not told apart: a flood of different keys must not
/// take memory without end.
const MOST: usize = 4096;
/// To look through a full table takes as long as many a decision: in the flood that filled
/// it, not each denial does.
const BETWEEN_SWEEPS: Duration = Duration::from_millis(20);

impl DenyCache {
    pub(crate) fn new(bound: Duration) -> Self {
        Self {
            bound,
            entries: Mutex::default(),
            count: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            settling: Mutex::default(),
            hasher: RandomState::default(),
        }
    }

    /// What was known when a request was made: its answer is remembered only if nothing
    /// has been forgotten since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The verdict on a request that cannot be any other.
    pub(crate) fn find(&self, lines: &[Line]) -> Option<Verdict> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let hash = self.hash(lines);
        let now = Instant::now();
        let entries = self.entries.lock();
        let denied = entries.table.find(hash, |denied| denied.is_about(lines))?;
        denied.verdict_on(lines, now)
    }

    /// Remembers the answer to a call sent at `sent`, if it is one that stands.
    pub(crate) fn learn(&self, ticket: &Ticket, verdict: &Verdict, sent: Instant) {
        if verdict.is_admitted() || self.bound.is_zero() {
            return;
        }
        let Request::Decide(lines) = &ticket.request else { return };
        let Some(wait) = time_of_denial(lines, verdict) else { return };
        let is_dry = lines.iter().any(|line| line.dry);
        if is_dry || self.settles(lines) || has_twins(lines) || may_strike(lines, verdict) {
            return;
        }
        let until = sent + wait.min(self.bound).min(leased_for(lines));
        let denied = Denied { lines: lines.clone(), verdict: verdict.clone(), sent, until };
        let now = Instant::now();
        if until <= now {
            return;
        }
        let hash = self.hash(lines);
        let mut entries = self.entries.lock();
        // Under the lock, as forgetting is.
        if self.epoch() != ticket.epoch {
            return;
        }
        let Entries { table, swept } = &mut *entries;
        if let Some(known) = table.find_mut(hash, |denied| denied.is_about(lines)) {
            // The least cost denied says most.
            if known.until <= now || known.costs_at_least(lines) {
                *known = denied;
            }
            return;
        }
        if table.len() >= MOST {
            if swept.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_SWEEPS) {
                return;
            }
            *swept = Some(now);
            table.retain(|denied| denied.until > now);
            if table.len() >= MOST {
                return;
            }
        }
        table.insert_unique(hash, denied, |denied| self.hash(&denied.lines));
        self.count.store(table.len(), Ordering::Relaxed);
    }

    /// Forgets everything, as a key is about to be reset or was.
    pub(crate) fn forget(&self) {
        let mut entries = self.entries.lock();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        entries.table.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// Never remembers denials of this policy again.
    pub(crate) fn never_again(&self, policy: &str) {
        let mut settling = self.settling.lock();
        if !settling.contains(policy) {
            settling.insert(policy.to_owned());
            drop(settling);
            self.forget();
        }
    }

    fn settles(&self, lines: &[Line]) -> bool {
        if lines.iter().any(|line| line.policy.counts_in_flight()) {
            return true;
        }
        let settling = self.settling.lock();
        !settling.is_empty() && lines.iter().any(|line| settling.contains(line.policy.name()))
    }

    fn hash(&self, lines: &[Line]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for line in lines {
            line.state.hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl Denied {
    /// Whether the charges differ in nothing but their costs.
    fn is_about(&self, lines: &[Line]) -> bool {
        self.lines.len() == lines.len()
            && self.lines.iter().zip(lines).all(|(mine, line)| {
                mine.state == line.state
                    && mine.enforce == line.enforce
                    && (mine.policy.is_same(&line.policy)
                        || mine.policy.form() == line.policy.form())
            })
    }

    fn costs_at_least(&self, lines: &[Line]) -> bool {
        self.lines.iter().zip(lines).all(|(mine, line)| mine.cost >= line.cost)
    }

    fn verdict_on(&self, lines: &[Line], now: Instant) -> Option<Verdict> {
        if now >= self.until {
            return None;
        }
        let charges = self.lines.iter().zip(lines).zip(self.verdict.decisions());
        let stands = charges.into_iter().all(|((mine, line), decision)| match decision.outcome {
            // More than was denied is denied all the more, unless it can never pass.
            Outcome::Deny { .. } => {
                line.cost >= mine.cost && line.cost.get() <= line.policy.capacity()
            }
            Outcome::Exceed => line.cost >= mine.cost,
            _ => line.cost == mine.cost,
        });
        if !stands {
            return None;
        }
        let elapsed = micros(now.saturating_duration_since(self.sent));
        let decisions = self.verdict.decisions().iter().map(|decision| Decision {
            outcome: match decision.outcome {
                Outcome::Deny { retry_after } => {
                    Outcome::Deny { retry_after: less(retry_after, elapsed) }
                }
                outcome => outcome,
            },
            reset_after: less(decision.reset_after, elapsed),
            ..*decision
        });
        let decided_at = self.verdict.decided_at() + elapsed;
        Some(Verdict::new(false, decided_at, decisions).with_source(Source::Cache))
    }
}

/// Until the first of the denials in a verdict could pass, all of it stands. None if it
/// is for no enforced denial that it was refused.
fn time_of_denial(lines: &[Line], verdict: &Verdict) -> Option<Duration> {
    let decisions = || lines.iter().zip(verdict.decisions());
    if !decisions().any(|(line, decision)| line.enforce && decision.denies()) {
        return None;
    }
    let waits = decisions().filter_map(|(_, decision)| decision.retry_after());
    let wait = waits.min().map_or(u64::MAX, Micros::get);
    Some(Duration::from_micros(wait))
}

/// What others hold comes back within a lease's time, or is spent.
fn leased_for(lines: &[Line]) -> Duration {
    let leases = lines.iter().filter_map(|line| line.policy.lease());
    leases.map(|lease| lease.time_to_live().into()).min().unwrap_or(Duration::MAX)
}

/// Whether the same request would be struck again: a penalty counts its denials, and does not
/// block it yet.
fn may_strike(lines: &[Line], verdict: &Verdict) -> bool {
    let mut decisions = lines.iter().zip(verdict.decisions());
    decisions.any(|(line, decision)| line.policy.counts_denials() && !decision.denies())
}

/// Charges to one key are decided by their sum, which costs of each do not tell.
fn has_twins(lines: &[Line]) -> bool {
    lines
        .iter()
        .enumerate()
        .any(|(i, line)| lines[..i].iter().any(|other| other.state == line.state))
}

fn micros(span: Duration) -> Micros {
    Micros::new(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

fn less(span: Micros, elapsed: Micros) -> Micros {
    Micros::new(span.get().saturating_sub(elapsed.get()))
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Cost, Policy, Quota, Timestamp};

    use super::*;

    fn request(n: usize) -> Ticket {
        let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
        let state = n.to_be_bytes().as_slice().into();
        let line = Line { state, policy, cost: Cost::ONE, enforce: true, dry: false };
        Ticket::new(Request::Decide([line].into_iter().collect()), 0, Instant::now())
    }

    fn denial() -> Verdict {
        let outcome = Outcome::Deny { retry_after: Micros::new(60_000_000) };
        let decision = Decision { outcome, ..Decision::skipped(9) };
        Verdict::single(false, Timestamp::EPOCH, decision)
    }

    fn is_remembered(cache: &DenyCache, n: usize) -> bool {
        let ticket = request(n);
        let Request::Decide(lines) = &ticket.request else { return false };
        cache.find(lines).is_some()
    }

    #[test]
    fn a_flood_of_denied_keys_is_not_looked_through_for_each_of_them() {
        let cache = DenyCache::new(Duration::from_secs(60));
        for n in 0..MOST {
            cache.learn(&request(n), &denial(), Instant::now());
        }
        assert!(is_remembered(&cache, MOST - 1));
        // There is no room, which takes a look; the next ones take none.
        let began = Instant::now();
        cache.learn(&request(MOST), &denial(), Instant::now());
        let swept = cache.entries.lock().swept;
        assert!(swept.is_some() && !is_remembered(&cache, MOST));
        for n in MOST + 1..MOST + 100 {
            cache.learn(&request(n), &denial(), Instant::now());
        }
        if began.elapsed() < BETWEEN_SWEEPS {
            assert_eq!(cache.entries.lock().swept, swept);
        }
    }

    #[test]
    fn those_whose_time_is_over_make_room() {
        let cache = DenyCache::new(Duration::from_secs(60));
        for n in 0..MOST {
            cache.learn(&request(n), &denial(), Instant::now());
        }
        for denied in cache.entries.lock().table.iter_mut() {
            denied.until = denied.sent;
        }
        cache.learn(&request(MOST), &denial(), Instant::now());
        assert!(is_remembered(&cache, MOST) && !is_remembered(&cache, 0));
    }
}
