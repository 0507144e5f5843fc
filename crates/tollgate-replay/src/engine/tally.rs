//! Counts of policies, routes and clients.

use std::hash::BuildHasher;
use std::mem::take;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tollgate_core::{Micros, Receipt, Settlement, Timestamp, Verdict};

use super::{Ask, Request};
use crate::instant::Instant;
use crate::report::{ClientReport, Counts, Minute, Nearness, PolicyReport, Report, Totals, Waits};

/// Everything that is counted.
pub(super) struct Tallies {
    total: Tally,
    routes: Named<Tally>,
    policies: Named<PolicyTally>,
    clients: Clients,
    /// Denials by the day of the week and the hour, in UTC.
    heat: [[u64; 24]; 7],
    first: Option<Timestamp>,
    last: Timestamp,
    forbidden: u64,
}

/// A few things by their names.
struct Named<T> {
    items: Vec<(Box<str>, T)>,
    numbers: HashMap<Box<str>, usize, RandomState>,
    /// The item that each place of a request named last: most requests name the same items in the
    /// same places, and comparing a name is faster than hashing it.
    last: Vec<usize>,
}

impl<T: Default> Named<T> {
    fn new() -> Self {
        Self { items: Vec::new(), numbers: HashMap::default(), last: Vec::new() }
    }

    fn get(&mut self, place: usize, name: &str) -> &mut T {
        let last = self.last.get(place).copied();
        let is_last = |at: &usize| self.items.get(*at).is_some_and(|(last, _)| **last == *name);
        let number = last.filter(is_last).unwrap_or_else(|| self.number(place, name));
        &mut self.items[number].1
    }

    #[cold]
    fn number(&mut self, place: usize, name: &str) -> usize {
        let number = self.numbers.get(name).copied().unwrap_or_else(|| {
            self.numbers.insert(name.into(), self.items.len());
            self.items.push((name.into(), T::default()));
            self.items.len() - 1
        });
        if self.last.len() <= place {
            self.last.resize(place + 1, number);
        }
        self.last[place] = number;
        number
    }
}

/// Requests and units, and the minute with the most denials.
#[derive(Clone, Debug, Default)]
struct Tally {
    done: Totals,
    in_minute: Minute,
    /// The second of the log that is being counted. Whatever depends on the time alone is updated
    /// once a second.
    second: u64,
    allowed: u64,
    denied: u64,
}

impl Tally {
    fn note(&mut self, now: Timestamp, units: u64, is_allowed: bool) {
        let second = now.as_micros() / 1_000_000;
        if second != self.second {
            self.second_is_over();
            self.second = second;
        }
        self.done.counts.units = self.done.counts.units.saturating_add(units);
        *(if is_allowed { &mut self.allowed } else { &mut self.denied }) += 1;
    }

    fn second_is_over(&mut self) {
        let (allowed, denied) = (take(&mut self.allowed), take(&mut self.denied));
        let requests = allowed + denied;
        if requests == 0 {
            return;
        }
        let minute = Instant(Timestamp::from_micros(self.second / 60 * 60_000_000));
        if minute != self.in_minute.at {
            self.minute_is_over();
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

    /// The worst minute is the minute with the most denials, and without any the busiest minute.
    fn minute_is_over(&mut self) {
        let rank = |minute: &Minute| (minute.denied, minute.requests);
        let is_worse = |worst: Minute| rank(&self.in_minute) > rank(&worst);
        if self.in_minute.requests > 0 && self.done.worst_minute.is_none_or(is_worse) {
            self.done.worst_minute = Some(self.in_minute);
        }
    }

    fn totals(&self) -> Totals {
        let mut last = self.clone();
        last.second_is_over();
        last.minute_is_over();
        last.done
    }
}

#[derive(Debug, Default)]
struct PolicyTally {
    tally: Tally,
    waits: Waits,
    returned: u64,
    extra: u64,
    is_shadow: bool,
}

/// The counts of each client, by a hash of its key.
struct Clients {
    hasher: RandomState,
    known: HashMap<u64, ClientTally, RandomState>,
    most: usize,
    /// Requests and denials of the clients that came too late to be counted apart.
    beyond: Counts,
    /// The names of clients that were denied.
    named: HashMap<u64, Denials, RandomState>,
    most_named: usize,
}

#[derive(Clone, Copy, Default)]
struct ClientTally {
    requests: u32,
    denied: u32,
    minute: u32,
    in_minute: u32,
    /// Requests in its busiest minute.
    peak: u32,
    /// The smallest share of a quota that it had left, in percent; [`NEVER`] if it has no quota.
    least: u8,
}

const NEVER: u8 = u8::MAX;

struct Denials {
    name: Box<str>,
    first: Timestamp,
    last: Timestamp,
    hours: [u32; 24],
}

impl Tallies {
    pub(super) fn new(clients: usize, named: usize) -> Self {
        let clients = Clients {
            hasher: RandomState::default(),
            known: HashMap::default(),
            most: clients,
            beyond: Counts::default(),
            named: HashMap::default(),
            most_named: named,
        };
        Self {
            total: Tally::default(),
            routes: Named::new(),
            policies: Named::new(),
            clients,
            heat: [[0; 24]; 7],
            first: None,
            last: Timestamp::EPOCH,
            forbidden: 0,
        }
    }

    pub(super) fn client_asks(&mut self, request: &Request<'_>, now: Timestamp) {
        self.first.get_or_insert(now);
        self.last = now;
        let Some(client) = request.client else { return };
        match self.clients.get(client.key) {
            Some(tally) => tally.ask(now),
            None => self.clients.beyond.requests += 1,
        }
    }

    pub(super) fn pass(&mut self, request: &Request<'_>, now: Timestamp) {
        self.total.note(now, 0, true);
        self.routes.get(0, request.route).note(now, 0, true);
    }

    pub(super) fn forbid(&mut self, request: &Request<'_>, now: Timestamp) {
        self.forbidden += 1;
        self.total.note(now, 0, false);
        self.routes.get(0, request.route).note(now, 0, false);
        self.denied(request, now);
    }

    pub(super) fn admit(&mut self, request: &Request<'_>, verdict: &Verdict, waited: Micros) {
        let now = verdict.decided_at();
        let units = units(request.asks);
        self.total.note(now, units, true);
        self.routes.get(0, request.route).note(now, units, true);
        self.policies(request, verdict, waited, true);
    }

    pub(super) fn deny(&mut self, request: &Request<'_>, verdict: &Verdict, waited: Micros) {
        let now = verdict.decided_at();
        let units = units(request.asks);
        self.total.note(now, units, false);
        self.routes.get(0, request.route).note(now, units, false);
        self.policies(request, verdict, waited, false);
        self.denied(request, now);
    }

    pub(super) fn settle(&mut self, receipt: &Receipt, settled: Settlement) {
        if receipt.policy.is_concurrency() {
            return;
        }
        let policy = self.policies.get(0, receipt.policy.name());
        match settled {
            Settlement::Returned { units } => policy.returned += units,
            Settlement::Charged { units } => policy.extra += units,
            Settlement::Repeated | Settlement::Lapsed => {}
        }
    }

    fn policies(
        &mut self,
        request: &Request<'_>,
        verdict: &Verdict,
        waited: Micros,
        is_admitted: bool,
    ) {
        let now = verdict.decided_at();
        let mut least = NEVER;
        // A request that gave up waiting was denied by its limits that wait.
        let gave_up = !is_admitted
            && !request
                .asks
                .iter()
                .zip(verdict.decisions())
                .any(|(ask, it)| ask.enforce && it.denies());
        for (place, (ask, decision)) in request.asks.iter().zip(verdict.decisions()).enumerate() {
            let policy = self.policies.get(place, ask.policy.name());
            let is_allowed = decision.allows() && !(gave_up && ask.waits.is_some());
            policy.tally.note(now, ask.cost.get(), is_allowed);
            policy.is_shadow = !ask.enforce;
            let waited = if ask.waits.is_some() { waited } else { Micros::ZERO };
            let wait = plus(waited, decision.delay());
            if wait > Micros::ZERO {
                policy.waits.note(wait);
            }
            if ask.of_client && ask.enforce && !ask.policy.is_penalty() && decision.limit > 0 {
                // No limit is as large as a hundredth of 2^64.
                let share = decision.remaining.saturating_mul(100) / decision.limit;
                least = least.min(u8::try_from(share).unwrap_or(100));
            }
        }
        if let Some(client) = request.client
            && least != NEVER
            && let Some(tally) = self.clients.get(client.key)
        {
            tally.least = tally.least.min(least);
        }
    }

    fn denied(&mut self, request: &Request<'_>, now: Timestamp) {
        let (day, hour) = Instant(now).hour_of_week();
        self.heat[day][hour] += 1;
        let Some(client) = request.client else { return };
        match self.clients.get(client.key) {
            Some(tally) => tally.denied = tally.denied.saturating_add(1),
            None => self.clients.beyond.denied += 1,
        }
        self.clients.name(client, now, hour);
    }

    pub(super) fn report(&self, overflowed: u64, cut_short: u64) -> Report {
        let policy = |(name, policy): &(Box<str>, PolicyTally)| {
            let PolicyTally { tally, waits, returned, extra, is_shadow } = policy;
            let (returned, extra) = (*returned, *extra);
            let (totals, waits, shadow) = (tally.totals(), *waits, *is_shadow);
            (name.to_string(), PolicyReport { totals, waits, returned, extra, shadow })
        };
        let route = |(name, tally): &(Box<str>, Tally)| (name.to_string(), tally.totals());
        let is_denied = |client: &&ClientTally| client.denied > 0;
        let (clients, beyond) = (&self.clients.known, self.clients.beyond);
        Report {
            total: self.total.totals(),
            first: self.first.map(Instant),
            last: self.first.map(|_| Instant(self.last)),
            clients: clients.len() as u64,
            clients_denied: clients.values().filter(is_denied).count() as u64,
            beyond_clients: beyond,
            forbidden: self.forbidden,
            nearness: nearness(clients.values()),
            peaks: peaks(clients.values()),
            denials_by_hour: self.heat.map(|day| day.to_vec()).to_vec(),
            denied_clients: self.clients.most_denied(),
            policies: self.policies.items.iter().map(policy).collect(),
            routes: self.routes.items.iter().map(route).collect(),
            overflowed,
            cut_short,
        }
    }
}

/// The sum of two spans.
pub(super) const fn plus(one: Micros, other: Micros) -> Micros {
    Micros::new(one.get().saturating_add(other.get()))
}

/// The units of a request: its largest charge to a limit that is enforced.
fn units(asks: &[Ask<'_>]) -> u64 {
    asks.iter().filter(|ask| ask.enforce).map(|ask| ask.cost.get()).max().unwrap_or_default()
}

impl ClientTally {
    fn ask(&mut self, now: Timestamp) {
        self.requests = self.requests.saturating_add(1);
        // Only a change of the minute matters, so that it may wrap around.
        #[expect(clippy::cast_possible_truncation, reason = "wraps around after 8000 years")]
        let minute = (now.as_micros() / 60_000_000) as u32;
        if minute != self.minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_minute = self.in_minute.saturating_add(1);
        self.peak = self.peak.max(self.in_minute);
    }
}

impl Clients {
    /// `None` beyond the bound.
    fn get(&mut self, key: &tollgate_core::Key) -> Option<&mut ClientTally> {
        let hash = self.hasher.hash_one(key);
        let is_full = self.known.len() >= self.most;
        match self.known.entry(hash) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(new) => {
                Some(new.insert(ClientTally { least: NEVER, ..ClientTally::default() }))
            }
        }
    }

    fn name(&mut self, client: super::Client<'_>, now: Timestamp, hour: usize) {
        let hash = self.hasher.hash_one(client.key);
        let is_full = self.named.len() >= self.most_named;
        let denials = match self.named.entry(hash) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(new) => new.insert(Denials {
                name: client.name.to_string().into(),
                first: now,
                last: now,
                hours: [0; 24],
            }),
        };
        denials.last = now;
        denials.hours[hour] += 1;
    }

    fn most_denied(&self) -> Vec<ClientReport> {
        let report = |(hash, denials): (&u64, &Denials)| {
            let counted = self.known.get(hash).copied().unwrap_or_default();
            ClientReport {
                client: denials.name.to_string(),
                requests: counted.requests.into(),
                denied: denials.hours.iter().copied().map(u64::from).sum(),
                first: Instant(denials.first),
                last: Instant(denials.last),
                hours: denials.hours.to_vec(),
            }
        };
        let mut denied: Vec<_> = self.named.iter().map(report).collect();
        denied.sort_unstable_by(|one, other| {
            other.denied.cmp(&one.denied).then_with(|| one.client.cmp(&other.client))
        });
        denied
    }
}

/// How near the clients came that were never denied, in tenths of their quota.
fn nearness<'a>(clients: impl Iterator<Item = &'a ClientTally>) -> Vec<Nearness> {
    let mut tenths = [0_u64; 10];
    for client in clients.filter(|client| client.denied == 0 && client.least != NEVER) {
        tenths[usize::from(client.least / 10).min(9)] += 1;
    }
    (0..)
        .zip(tenths)
        .map(|(tenth, clients)| Nearness { left_percent: tenth * 10, clients })
        .collect()
}

/// Clients by the requests of their busiest minute: up to 1, 2, 4, 8, …
fn peaks<'a>(clients: impl Iterator<Item = &'a ClientTally>) -> Vec<(u64, u64)> {
    let mut powers = Vec::new();
    for client in clients {
        let power = client.peak.max(1).next_power_of_two().trailing_zeros() as usize;
        if powers.len() <= power {
            powers.resize(power + 1, 0);
        }
        powers[power] += 1;
    }
    powers.into_iter().enumerate().map(|(power, clients)| (1 << power, clients)).collect()
}
