//! The result of a replay.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_core::{Micros, Timestamp};

use crate::instant::Instant;

/// The result of a replay: plain numbers, also as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// All requests.
    #[serde(flatten)]
    pub total: Totals,
    /// When the first request arrived.
    pub first: Option<Instant>,
    /// When the last request arrived.
    pub last: Option<Instant>,
    /// Distinct clients, up to the bound.
    pub clients: u64,
    /// Clients that were denied at least once.
    pub clients_denied: u64,
    /// Requests of clients beyond the bound.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub beyond_clients: Counts,
    /// Requests that were denied before any limit: by a blocklist, or
    /// because their client is unknown.
    pub forbidden: u64,
    /// The effect of each policy, by its name.
    pub policies: BTreeMap<String, PolicyReport>,
    /// The requests of each route, by its name.
    pub routes: BTreeMap<String, Totals>,
    /// Clients that were never denied, by the smallest share of a quota that each had left.
    pub nearness: Vec<Nearness>,
    /// Clients by the requests of their busiest minute: the most requests, and the number of clients.
    pub peaks: Vec<(u64, u64)>,
    /// Denials by the day of the week, from Monday, and the hour, in UTC.
    pub denials_by_hour: Vec<Vec<u64>>,
    /// Clients that were denied, most denials first.
    pub denied_clients: Vec<ClientReport>,
    /// Charges to keys for which the store had no room: these keys shared a quota.
    pub overflowed: u64,
    /// Responses that ended early because too many were in flight.
    pub cut_short: u64,
}

impl Report {
    /// Whether every decision is the one that the service would have made: the store had room for
    /// all keys, and no response ended early.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.overflowed == 0 && self.cut_short == 0
    }
}

/// Requests and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Units that the requests cost.
    pub units: u64,
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
}

impl Counts {
    const fn is_empty(&self) -> bool {
        self.requests == 0
    }
}

/// Counts, and their distribution over time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Requests and units.
    #[serde(flatten)]
    pub counts: Counts,
    /// The minute with the most denials; without denials, the minute with the most requests.
    pub worst_minute: Option<Minute>,
    /// Over time.
    pub series: Series,
}

/// One minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Minute {
    /// Its start.
    pub at: Instant,
    /// Requests.
    pub requests: u64,
    /// Denied requests.
    pub denied: u64,
}

impl Default for Minute {
    fn default() -> Self {
        Self { at: Instant(Timestamp::EPOCH), requests: 0, denied: 0 }
    }
}

/// The effect of one policy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyReport {
    /// The requests to which the policy applied. A request that this policy did not deny counts as
    /// allowed, even if another policy denied it.
    #[serde(flatten)]
    pub totals: Totals,
    /// Requests that waited for the policy.
    pub waits: Waits,
    /// Units that were refunded after the response.
    pub returned: u64,
    /// Units that were charged in addition after the response.
    pub extra: u64,
    /// Whether it is a shadow or soft policy, which denies nothing.
    pub shadow: bool,
}

/// Requests that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The number of requests.
    pub requests: u64,
    /// The sum of the waits, in microseconds.
    pub total_micros: u64,
    /// The longest wait, in microseconds.
    pub longest_micros: u64,
}

impl Waits {
    pub(crate) fn note(&mut self, wait: Micros) {
        self.requests += 1;
        self.total_micros = self.total_micros.saturating_add(wait.get());
        self.longest_micros = self.longest_micros.max(wait.get());
    }
}

/// A client that was denied.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// Its name.
    pub client: String,
    /// Its requests.
    pub requests: u64,
    /// Denied requests.
    pub denied: u64,
    /// The first denial.
    pub first: Instant,
    /// The policy of the first denial, or `(before any limit)`.
    pub first_by: String,
    /// The last denial.
    pub last: Instant,
    /// Denials by the hour of the day, in UTC.
    pub hours: Vec<u32>,
}

/// Clients that were never denied, by the smallest share of a quota that they had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nearness {
    /// The lower end of a range of ten percent.
    pub left_percent: u8,
    /// The number of clients.
    pub clients: u64,
}

/// Allowed and denied requests over time, in at most [`Series::CELLS`] steps: as the log grows,
/// steps become longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// The start of the first step.
    pub from: Instant,
    /// The length of a step in seconds.
    pub step_seconds: u64,
    /// Allowed and denied requests in each.
    pub steps: Vec<(u64, u64)>,
}

impl Default for Series {
    fn default() -> Self {
        Self { from: Instant(Timestamp::EPOCH), step_seconds: 1, steps: Vec::new() }
    }
}

/// The lengths of steps that people know, in seconds. Each is a multiple of the one before it; the
/// last is a day, and longer steps double.
const STEPS: [u64; 13] = [1, 2, 10, 30, 60, 120, 600, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];

impl Series {
    /// The most steps.
    pub const CELLS: usize = 512;

    pub(crate) fn add(&mut self, second: u64, allowed: u64, denied: u64) {
        if self.steps.is_empty() {
            self.from = Instant(Timestamp::from_micros(second * 1_000_000));
        }
        let since = second.saturating_sub(self.from.0.as_micros() / 1_000_000);
        while since / self.step_seconds >= Self::CELLS as u64 {
            self.lengthen_steps();
        }
        let step = (since / self.step_seconds) as usize;
        if self.steps.len() <= step {
            self.steps.resize(step + 1, (0, 0));
        }
        let sum = &mut self.steps[step];
        (sum.0, sum.1) = (sum.0 + allowed, sum.1 + denied);
    }

    /// Lengthens the steps until there are at most this many.
    #[cfg(feature = "html")]
    pub(crate) fn in_steps(&self, most: usize) -> Self {
        let mut series = self.clone();
        while series.steps.len() > most {
            series.lengthen_steps();
        }
        series
    }

    fn lengthen_steps(&mut self) {
        let longer = STEPS.iter().copied().find(|step| *step > self.step_seconds);
        let longer = longer.unwrap_or_else(|| self.step_seconds.saturating_mul(2));
        let parts = self.steps.chunks((longer / self.step_seconds) as usize);
        self.steps = parts
            .map(|part| part.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1)))
            .collect();
        self.step_seconds = longer;
    }
}
