//! The replay report.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_core::{Micros, Policy, Timestamp};

use crate::instant::Instant;

/// The report on a replay. It can be serialized as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// All requests.
    #[serde(flatten)]
    pub total: Totals,
    /// When the first request arrived.
    pub first: Option<Instant>,
    /// When the last request arrived.
    pub last: Option<Instant>,
    /// Distinct clients, up to [`Bounds::clients`](crate::Bounds::clients).
    pub clients: u64,
    /// Clients with at least one denial.
    pub clients_denied: u64,
    /// Requests from clients beyond the bound.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub beyond_clients: Counts,
    /// Requests that were denied before any limit, either by a blocklist or because their client is
    /// unknown.
    pub forbidden: u64,
    /// The effect of each policy, by name.
    pub policies: BTreeMap<String, PolicyReport>,
    /// Requests per route, by name.
    pub routes: BTreeMap<String, Totals>,
    /// Clients that were never denied, by their smallest remaining quota.
    pub nearness: Vec<Nearness>,
    /// Clients by requests in their busiest minute: the maximum requests and the number of clients.
    pub peaks: Vec<(u64, u64)>,
    /// Denials by weekday (from Monday) and hour, in UTC.
    pub denials_by_hour: Vec<Vec<u64>>,
    /// Denied clients, those with the most denials first.
    pub denied_clients: Vec<ClientReport>,
    /// Charges to keys that did not fit into the store and therefore shared a quota.
    pub overflowed: u64,
    /// Responses that were cut short because too many were in flight.
    pub cut_short: u64,
}

impl Report {
    /// Whether every decision matches the service: the store had room for all keys, and no response
    /// was cut short.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.overflowed == 0 && self.cut_short == 0
    }

    /// Returns the policies by name, each followed by its levels, with the depth in this tree.
    #[must_use]
    pub fn policy_tree(&self) -> Vec<(usize, &str, &PolicyReport)> {
        let mut tree = Vec::with_capacity(self.policies.len());
        self.add_levels(None, 0, &mut tree);
        tree
    }

    fn add_levels<'a>(
        &'a self,
        base: Option<&str>,
        depth: usize,
        tree: &mut Vec<(usize, &'a str, &'a PolicyReport)>,
    ) {
        for (name, policy) in self.policies.iter().filter(|(_, it)| it.level_of.as_deref() == base)
        {
            tree.push((depth, name, policy));
            self.add_levels(Some(name), depth + 1, tree);
        }
    }

    /// Finds the policies that are levels of other policies in this report.
    pub(crate) fn find_levels(&mut self) {
        let names: Vec<_> = self.policies.keys().cloned().collect();
        for (name, policy) in &mut self.policies {
            let base = Policy::base_of_level(name).map(ToOwned::to_owned);
            policy.level_of = base.filter(|base| names.binary_search(base).is_ok());
        }
    }
}

/// Requests and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// The requests' total cost.
    pub units: u64,
    /// Allowed requests.
    pub allowed: u64,
    /// Denied requests.
    pub denied: u64,
}

impl Counts {
    const fn is_empty(&self) -> bool {
        self.requests == 0
    }
}

/// Counts and their distribution over time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Requests and units.
    #[serde(flatten)]
    pub counts: Counts,
    /// The minute with the most denials, or with the most requests if there were no denials.
    pub worst_minute: Option<Minute>,
    /// The distribution over time.
    pub series: Series,
}

/// A minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Minute {
    /// The start of the minute.
    pub at: Instant,
    /// Requests.
    pub requests: u64,
    /// Denied requests.
    pub denied: u64,
}

/// A policy's effect.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyReport {
    /// The requests to which the policy applied. A request counts as allowed unless this policy
    /// denied it, even if another policy did.
    #[serde(flatten)]
    pub totals: Totals,
    /// Requests that waited for the policy.
    pub waits: Waits,
    /// Units that were refunded after the response.
    pub returned: u64,
    /// Additional units that were charged after the response.
    pub extra: u64,
    /// Whether the policy is in shadow mode or a soft limit, so it never denies requests.
    pub shadow: bool,
    /// A level's base policy, such as `client` for `client/team`.
    pub level_of: Option<String>,
}

/// Requests that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The number of requests.
    pub requests: u64,
    /// The total wait in microseconds.
    pub total_micros: u64,
    /// The longest wait in microseconds.
    pub longest_micros: u64,
}

impl Waits {
    pub(crate) fn note(&mut self, wait: Micros) {
        self.requests += 1;
        self.total_micros = self.total_micros.saturating_add(wait.get());
        self.longest_micros = self.longest_micros.max(wait.get());
    }
}

/// A denied client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// The client's name.
    pub client: String,
    /// The client's requests.
    pub requests: u64,
    /// Denied requests.
    pub denied: u64,
    /// The first denial.
    pub first: Instant,
    /// The policy that denied first, or `(before any limit)`.
    pub first_by: String,
    /// The last denial.
    pub last: Instant,
    /// Denials by hour of the day, in UTC.
    pub hours: Vec<u32>,
}

/// Clients that were never denied, grouped by their smallest remaining quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nearness {
    /// The lower bound of the range in percent. Each range spans ten percent.
    pub left_percent: u8,
    /// The number of clients.
    pub clients: u64,
}

/// Allowed and denied requests over time, in at most [`Series::CELLS`] steps. The steps become
/// longer as the log grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// The start of the first step.
    pub from: Instant,
    /// The step length in seconds.
    pub step_seconds: u64,
    /// Allowed and denied requests in each step.
    pub steps: Vec<(u64, u64)>,
}

impl Default for Series {
    fn default() -> Self {
        Self { from: Instant(Timestamp::EPOCH), step_seconds: 1, steps: Vec::new() }
    }
}

/// Familiar step lengths in seconds. Each is a multiple of the previous length. The last is a day,
/// and longer steps double.
const STEPS: [u64; 13] = [1, 2, 10, 30, 60, 120, 600, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];

impl Series {
    /// The maximum number of steps.
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
