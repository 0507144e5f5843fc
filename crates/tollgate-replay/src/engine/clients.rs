//! Per-client counts.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tollgate_core::Timestamp;

use super::{Bounds, Client};
use crate::instant::Instant;
use crate::report::{ClientReport, Counts, Nearness, Report};

/// Per-client counts, by a hash of the client's key.
#[derive(Default)]
pub(super) struct Clients {
    hasher: RandomState,
    known: HashMap<u64, Counted, RandomState>,
    most: usize,
    /// Requests and denials of clients that did not fit into the table.
    beyond: Counts,
    /// Denied clients, with their names.
    denied: HashMap<u64, Denials, RandomState>,
    most_named: usize,
}

#[derive(Clone, Copy)]
struct Counted {
    requests: u32,
    denied: u32,
    minute: u32,
    in_minute: u32,
    /// Requests in the client's busiest minute.
    peak: u32,
    /// The client's smallest remaining quota in percent, or [`NO_QUOTA`].
    least: u8,
}

const NO_QUOTA: u8 = u8::MAX;

struct Denials {
    name: Box<str>,
    first_by: Box<str>,
    first: Timestamp,
    last: Timestamp,
    hours: [u32; 24],
}

impl Clients {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self { most: bounds.clients, most_named: bounds.named, ..Self::default() }
    }

    /// Counts a client's new request, denial, or both. `left` is the client's remaining share in
    /// percent, and `denied_by` is the policy that denies the request.
    // A single function, because each lookup in a large table is a cache miss.
    pub(super) fn note(
        &mut self,
        client: Client<'_>,
        arrives: bool,
        left: Option<u8>,
        denied_by: Option<&str>,
        now: Timestamp,
    ) {
        let is_denied = denied_by.is_some();
        let hash = self.hasher.hash_one(client.key);
        let is_full = self.known.len() >= self.most;
        let counted = match self.known.entry(hash) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(new) => Some(new.insert(Counted::new())),
        };
        if let Some(counted) = counted {
            if arrives {
                counted.arrive(now);
            }
            counted.least = counted.least.min(left.unwrap_or(NO_QUOTA));
            counted.denied = counted.denied.saturating_add(u32::from(is_denied));
        } else {
            self.beyond.requests += u64::from(arrives);
            self.beyond.denied += u64::from(is_denied);
        }
        if let Some(policy) = denied_by {
            self.name(hash, client, policy, now);
        }
    }

    fn name(&mut self, hash: u64, client: Client<'_>, policy: &str, now: Timestamp) {
        let is_full = self.denied.len() >= self.most_named;
        let denials = match self.denied.entry(hash) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(new) => new.insert(Denials {
                name: client.name.to_string().into(),
                first_by: policy.into(),
                first: now,
                last: now,
                hours: [0; 24],
            }),
        };
        denials.last = now;
        let (_, hour) = Instant(now).hour_of_week();
        denials.hours[hour] += 1;
    }

    /// Adds the counts to a report.
    pub(super) fn report(&self, report: &mut Report) {
        let all = || self.known.values();
        report.clients = self.known.len() as u64;
        report.clients_denied = all().filter(|client| client.denied > 0).count() as u64;
        report.beyond_clients = self.beyond;
        report.nearness = nearness(all());
        report.peaks = peaks(all());
        report.denied_clients = self.most_denied();
    }

    fn most_denied(&self) -> Vec<ClientReport> {
        let report = |(hash, denials): (&u64, &Denials)| ClientReport {
            client: denials.name.to_string(),
            requests: self.known.get(hash).map_or(0, |known| known.requests.into()),
            denied: denials.hours.iter().copied().map(u64::from).sum(),
            first: Instant(denials.first),
            first_by: denials.first_by.to_string(),
            last: Instant(denials.last),
            hours: denials.hours.to_vec(),
        };
        let mut denied: Vec<_> = self.denied.iter().map(report).collect();
        denied.sort_unstable_by(|one, other| {
            other.denied.cmp(&one.denied).then_with(|| one.client.cmp(&other.client))
        });
        denied
    }
}

impl Counted {
    const fn new() -> Self {
        Self { requests: 0, denied: 0, minute: 0, in_minute: 0, peak: 0, least: NO_QUOTA }
    }

    fn arrive(&mut self, now: Timestamp) {
        self.requests = self.requests.saturating_add(1);
        #[expect(clippy::cast_possible_truncation, reason = "wraps around after 8000 years")]
        let minute = (now.as_micros() / 60_000_000) as u32;
        if minute != self.minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_minute = self.in_minute.saturating_add(1);
        self.peak = self.peak.max(self.in_minute);
    }
}

/// Clients that were never denied, by their smallest remaining share in steps of 10 %.
fn nearness<'a>(clients: impl Iterator<Item = &'a Counted>) -> Vec<Nearness> {
    let mut tenths = [0_u64; 10];
    for client in clients.filter(|client| client.denied == 0 && client.least != NO_QUOTA) {
        tenths[usize::from(client.least / 10).min(9)] += 1;
    }
    let near = |(tenth, clients): (u8, u64)| Nearness { left_percent: tenth * 10, clients };
    (0..).zip(tenths).map(near).collect()
}

/// The number of clients by requests in their busiest minute, in steps: up to 1, 2, 4, 8, …
fn peaks<'a>(clients: impl Iterator<Item = &'a Counted>) -> Vec<(u64, u64)> {
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
