//! Counts per policy and route.

use std::mem::take;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tollgate_core::{Micros, Receipt, Settlement, Timestamp};
use tollgate_engine::SubjectKind;

use super::clients::Clients;
use super::{Bounds, Request};
use crate::instant::Instant;
use crate::report::{Minute, PolicyReport, Report, Totals};

/// All counts.
#[derive(Default)]
pub(super) struct Tallies {
    total: Tally,
    routes: Named<Tally>,
    policies: Named<PolicyTally>,
    clients: Clients,
    /// Denials by weekday and hour, in UTC.
    heat: [[u64; 24]; 7],
    first: Option<Timestamp>,
    last: Timestamp,
    forbidden: u64,
}

/// Replaces the policy name if a blocklist denies the client or the client is unknown.
const BEFORE_LIMITS: &str = "(before any limit)";

/// A small map from names to items.
#[derive(Default)]
struct Named<T> {
    items: Vec<(Box<str>, T)>,
    numbers: HashMap<Box<str>, usize, RandomState>,
    /// The last item at each position in a request. Most requests have the same names at the same
    /// positions, and comparing a name is faster than hashing it.
    last: Vec<usize>,
}

impl<T: Default> Named<T> {
    fn get(&mut self, position: usize, name: &str) -> &mut T {
        let last = self.last.get(position).copied();
        let is_last = |at: &usize| self.items.get(*at).is_some_and(|(last, _)| **last == *name);
        let number = last.filter(is_last).unwrap_or_else(|| self.number(position, name));
        &mut self.items[number].1
    }

    #[cold]
    fn number(&mut self, position: usize, name: &str) -> usize {
        let number = self.numbers.get(name).copied().unwrap_or_else(|| {
            self.numbers.insert(name.into(), self.items.len());
            self.items.push((name.into(), T::default()));
            self.items.len() - 1
        });
        if self.last.len() <= position {
            self.last.resize(position + 1, number);
        }
        self.last[position] = number;
        number
    }
}

/// Counts of requests and units, and the worst minute.
#[derive(Clone, Debug, Default)]
struct Tally {
    done: Totals,
    in_minute: Minute,
    /// The current second. Series and minutes are only updated once per second, because updating
    /// them costs more than a counter.
    second: u64,
    allowed: u64,
    denied: u64,
}

impl Tally {
    fn note(&mut self, now: Timestamp, units: u64, is_allowed: bool) {
        let second = now.as_micros() / 1_000_000;
        if second != self.second {
            self.end_second();
            self.second = second;
        }
        self.done.counts.units = self.done.counts.units.saturating_add(units);
        *(if is_allowed { &mut self.allowed } else { &mut self.denied }) += 1;
    }

    fn end_second(&mut self) {
        let (allowed, denied) = (take(&mut self.allowed), take(&mut self.denied));
        let requests = allowed + denied;
        if requests == 0 {
            return;
        }
        let minute = Instant(Timestamp::from_micros(self.second / 60 * 60_000_000));
        if minute != self.in_minute.at {
            self.end_minute();
            self.in_minute = Minute { at: minute, requests: 0, denied: 0 };
        }
        self.in_minute.requests += requests;
        self.in_minute.denied += denied;
        let Totals { counts, series, .. } = &mut self.done;
        counts.requests += requests;
        counts.allowed += allowed;
        counts.denied += denied;
        series.add(self.second, allowed, denied);
    }

    /// The worst minute has the most denials, or the most requests if there are no denials.
    fn end_minute(&mut self) {
        let rank = |minute: &Minute| (minute.denied, minute.requests);
        let is_worse = |worst: Minute| rank(&self.in_minute) > rank(&worst);
        if self.in_minute.requests > 0 && self.done.worst_minute.is_none_or(is_worse) {
            self.done.worst_minute = Some(self.in_minute);
        }
    }

    fn totals(&self) -> Totals {
        let mut last = self.clone();
        last.end_second();
        last.end_minute();
        last.done
    }
}

#[derive(Debug, Default)]
struct PolicyTally {
    tally: Tally,
    /// The report, except for the totals.
    report: PolicyReport,
}

impl Tallies {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self { clients: Clients::new(bounds), ..Self::default() }
    }

    /// Records that the log has reached `now`.
    pub(super) fn reach(&mut self, now: Timestamp) {
        self.first.get_or_insert(now);
        self.last = now;
    }

    /// Counts a request that has no limits or is denied before any limit.
    pub(super) fn pass(&mut self, request: &Request<'_>, is_allowed: bool, now: Timestamp) {
        self.forbidden += u64::from(!is_allowed);
        self.answer(request, is_allowed, now);
        self.note_client(request, true, None, (!is_allowed).then_some(BEFORE_LIMITS), now);
    }

    /// Counts a request that starts to wait.
    pub(super) fn join(&mut self, request: &Request<'_>, now: Timestamp) {
        self.note_client(request, true, None, None, now);
    }

    fn note_client(
        &mut self,
        request: &Request<'_>,
        arrives: bool,
        left: Option<u8>,
        denied_by: Option<&str>,
        now: Timestamp,
    ) {
        if let Some(client) = request.client {
            self.clients.note(client, arrives, left, denied_by, now);
        }
    }

    /// Counts a decided request. `waited` is set if the request waited.
    pub(super) fn decide(
        &mut self,
        request: &Request<'_>,
        waited: Option<Micros>,
        is_admitted: bool,
    ) {
        let Request { limits, charges, .. } = request;
        let now = charges.decided_at();
        self.answer(request, is_admitted, now);
        let (mut least, mut denied_by) = (None, None);
        for (position, applied) in charges.iter().enumerate() {
            let (decision, mode) = (&applied.decision, limits.of(applied).mode);
            let policy = limits.policy(applied);
            let counts = self.policies.get(position, policy.name());
            counts.tally.note(now, applied.cost.get(), decision.allows());
            counts.report.shadow = !mode.enforces();
            let waited = waited.filter(|_| mode.max_wait().is_some()).unwrap_or_default();
            let wait = plus(waited, decision.delay());
            if wait > Micros::ZERO {
                counts.report.waits.note(wait);
            }
            if !mode.enforces() {
                continue;
            }
            if decision.denies() {
                denied_by = denied_by.or_else(|| Some(policy.name()));
            }
            let of_client = applied.kind != SubjectKind::Global;
            if of_client && !policy.is_penalty() && decision.limit > 0 {
                let share = decision.remaining.saturating_mul(100) / decision.limit;
                let share = u8::try_from(share).unwrap_or(100);
                least = Some(least.map_or(share, |least: u8| least.min(share)));
            }
        }
        let denied_by = (!is_admitted).then(|| denied_by.unwrap_or_default());
        self.note_client(request, waited.is_none(), least, denied_by, now);
    }

    /// Counts the final answer to a request.
    fn answer(&mut self, request: &Request<'_>, is_allowed: bool, now: Timestamp) {
        // A request's units are its largest charge to an enforced limit.
        let Request { limits, charges, .. } = request;
        let enforced = charges.iter().filter(|applied| limits.of(applied).mode.enforces());
        let units = enforced.map(|applied| applied.cost.get()).max().unwrap_or_default();
        self.total.note(now, units, is_allowed);
        self.routes.get(0, request.route).note(now, units, is_allowed);
        if !is_allowed {
            let (day, hour) = Instant(now).hour_of_week();
            self.heat[day][hour] += 1;
        }
    }

    pub(super) fn settle(&mut self, receipt: &Receipt, settled: Settlement) {
        if receipt.policy.is_concurrency() {
            return;
        }
        let policy = self.policies.get(0, receipt.policy.name());
        match settled {
            Settlement::Returned { units } => policy.report.returned += units,
            Settlement::Charged { units } => policy.report.extra += units,
            Settlement::Repeated | Settlement::Lapsed => {}
        }
    }

    pub(super) fn report(&self, overflowed: u64, cut_short: u64) -> Report {
        let policy = |(name, PolicyTally { tally, report }): &(Box<str>, PolicyTally)| {
            (name.to_string(), PolicyReport { totals: tally.totals(), ..report.clone() })
        };
        let route = |(name, tally): &(Box<str>, Tally)| (name.to_string(), tally.totals());
        let mut report = Report {
            total: self.total.totals(),
            first: self.first.map(Instant),
            last: self.first.map(|_| Instant(self.last)),
            forbidden: self.forbidden,
            denials_by_hour: self.heat.map(|day| day.to_vec()).to_vec(),
            policies: self.policies.items.iter().map(policy).collect(),
            routes: self.routes.items.iter().map(route).collect(),
            overflowed,
            cut_short,
            ..Report::default()
        };
        report.find_levels();
        self.clients.report(&mut report);
        report
    }
}

/// Adds two durations, saturating.
pub(super) const fn plus(one: Micros, other: Micros) -> Micros {
    Micros::new(one.get().saturating_add(other.get()))
}
