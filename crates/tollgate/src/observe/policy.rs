use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use parking_lot::Mutex;
use tollgate_core::Key;
use tollgate_core::{Decision, Outcome, Source};

use super::endpoint::Endpoints;
use super::metric::name;
use super::outcome::{CountedOutcome, PauseSource, source_name};
use super::service::{CurrentPause, Pauses, Service, ServiceNumbers};
use super::top::{DeniedClient, Top, sum};
use crate::key::SubjectKind;

/// A policy's counts, over all layers that share an [`Observer`](super::Observer).
///
/// The first event for an endpoint and a kind of client registers all their counters. So each
/// counter starts at 0, and Prometheus sees the first event as a rate.
#[derive(Debug)]
pub struct ObservedPolicy {
    policy: Arc<str>,
    endpoints: Arc<Endpoints>,
    cells: Box<[OnceLock<Box<ByKind>>]>,
    /// By the source of the decision.
    durations: [OnceLock<Histogram>; 4],
    gauges: OnceLock<QuotaGauges>,
    waits: OnceLock<Waits>,
    service: OnceLock<Service>,
    pauses: OnceLock<Pauses>,
    pub(super) counts: Counts,
    top: Mutex<Top>,
}

type ByKind = [OnceLock<Cell>; KINDS.len()];

#[derive(Debug)]
struct Cell {
    decisions: [Counter; CountedOutcome::ALL.len()],
    units: Counter,
}

#[derive(Debug)]
struct QuotaGauges {
    remaining: Gauge,
    limit: Gauge,
}

#[derive(Debug)]
struct Waits {
    requests: Gauge,
    waiting: AtomicU64,
    seconds: Histogram,
}

const KINDS: [SubjectKind; 5] = [
    SubjectKind::Global,
    SubjectKind::Ip,
    SubjectKind::ApiKey,
    SubjectKind::User,
    SubjectKind::Other,
];

impl ObservedPolicy {
    pub(super) fn new(policy: &str, endpoints: &Arc<Endpoints>) -> Self {
        Self {
            policy: policy.into(),
            endpoints: Arc::clone(endpoints),
            cells: (0..endpoints.numbers()).map(|_| OnceLock::new()).collect(),
            durations: Default::default(),
            gauges: OnceLock::new(),
            waits: OnceLock::new(),
            service: OnceLock::new(),
            pauses: OnceLock::new(),
            counts: Counts::default(),
            top: Mutex::new(Top::new(Instant::now())),
        }
    }

    #[inline]
    pub(crate) fn count(
        &self,
        kind: SubjectKind,
        cost: u64,
        endpoint: usize,
        answer: Option<CountedOutcome>,
        decision: Option<&Decision>,
        source: Source,
    ) {
        let outcome = decision.map(|decision| decision.outcome);
        let is_charged = cost > 0 && matches!(outcome, Some(Outcome::Allow { .. }));
        if answer.is_some() || is_charged {
            let cell = self.cell(endpoint, kind);
            if let Some(answer) = answer {
                cell.decisions[answer as usize].increment(1);
            }
            if is_charged {
                cell.units.increment(cost);
            }
        }
        if let Some(answer) = answer {
            self.counts.add(answer);
        }
        if let Some(decision) = decision
            && kind == SubjectKind::Global
            && decision.outcome != Outcome::Undecided
            && source != Source::Local
        {
            self.set_quota_gauges(decision);
        }
    }

    /// Returns the number of decisions so far for each outcome, named like the values of the
    /// `outcome` label.
    pub fn decisions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.read().map(|(answer, count)| (answer.as_str(), count))
    }

    /// Returns how many requests wait now, in the store's queue or in this process.
    pub fn waiting(&self) -> u64 {
        self.waits.get().map_or(0, |waits| waits.waiting.load(Ordering::Relaxed))
    }

    /// Returns the called service's last numbers, for a limiter's policy.
    pub fn service(&self) -> Option<ServiceNumbers> {
        self.service.get()?.numbers()
    }

    /// Returns the pause with the latest end among the pauses that this process has started.
    pub fn pause(&self) -> Option<CurrentPause> {
        self.pauses.get()?.current()
    }

    pub(crate) fn service_said(&self, limit: Option<u64>, remaining: u64) {
        self.service.get_or_init(|| Service::new(&self.label())).said(limit, remaining);
    }

    pub(crate) fn paused(&self, length: Duration, source: PauseSource<'_>) {
        self.pauses.get_or_init(|| Pauses::new(&self.label())).start(length, source);
    }

    pub(crate) fn denied(&self, key: &Key, kind: SubjectKind) {
        self.top.lock().count(key.clone(), kind, Instant::now());
    }

    #[inline]
    pub(crate) fn record_duration(&self, source: Source, store: &'static str, seconds: f64) {
        let histogram = self.durations[source as usize].get_or_init(|| {
            let store = source_name(source, store);
            let labels = vec![self.label(), Label::from_static_parts("store", store)];
            histogram!(name::DECISION_DURATION, labels)
        });
        histogram.record(seconds);
    }

    pub(crate) fn set_quota_gauges(&self, decision: &Decision) {
        let gauges = self.gauges.get_or_init(|| QuotaGauges {
            remaining: gauge!(name::REMAINING, vec![self.label()]),
            limit: gauge!(name::LIMIT, vec![self.label()]),
        });
        #[expect(clippy::cast_precision_loss, reason = "limits are below 2^53")]
        let [remaining, limit] = [decision.remaining, decision.limit].map(|units| units as f64);
        gauges.remaining.set(remaining);
        gauges.limit.set(limit);
    }

    fn waits(&self) -> &Waits {
        self.waits.get_or_init(|| Waits {
            requests: gauge!(name::WAITING, vec![self.label()]),
            waiting: AtomicU64::new(0),
            seconds: histogram!(name::WAIT, vec![self.label()]),
        })
    }

    #[inline]
    fn cell(&self, endpoint: usize, kind: SubjectKind) -> &Cell {
        let by_kind = self.cells[endpoint].get_or_init(Box::default);
        by_kind[kind as usize].get_or_init(|| self.new_cell(endpoint, kind))
    }

    #[cold]
    fn new_cell(&self, endpoint: usize, kind: SubjectKind) -> Cell {
        let labels = || {
            let client = Label::from_static_parts("client", kind.as_str());
            vec![self.label(), client, Label::new("endpoint", self.endpoints.name(endpoint))]
        };
        let decisions = CountedOutcome::ALL.map(|answer| {
            let mut labels = labels();
            labels.push(Label::from_static_parts("outcome", answer.as_str()));
            let counter = counter!(name::DECISIONS, labels);
            counter.increment(0);
            counter
        });
        let units = counter!(name::UNITS, labels());
        units.increment(0);
        Cell { decisions, units }
    }

    fn label(&self) -> Label {
        Label::new("policy", Arc::clone(&self.policy))
    }
}

/// Returns the clients that these policies denied most. A policy that appears several times counts
/// only once.
pub fn most_denied<'a>(
    policies: impl IntoIterator<Item = &'a ObservedPolicy>,
    most: usize,
) -> Vec<DeniedClient> {
    let mut read = Vec::new();
    let mut denied = Vec::new();
    for policy in policies {
        if !read.iter().any(|known| std::ptr::eq(*known, policy)) {
            read.push(policy);
            denied.extend(policy.top.lock().read(Instant::now()));
        }
    }
    sum(denied, most)
}

#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; CountedOutcome::ALL.len()]);

impl Counts {
    fn add(&self, answer: CountedOutcome) {
        self.0[answer as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> impl Iterator<Item = (CountedOutcome, u64)> {
        CountedOutcome::ALL
            .into_iter()
            .zip(&self.0)
            .map(|(answer, n)| (answer, n.load(Ordering::Relaxed)))
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    policy: Arc<ObservedPolicy>,
    since: Instant,
}

impl Waiting {
    pub(crate) fn new(policy: Arc<ObservedPolicy>) -> Self {
        let waits = policy.waits();
        waits.requests.increment(1.0);
        waits.waiting.fetch_add(1, Ordering::Relaxed);
        Self { policy, since: Instant::now() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waits = self.policy.waits();
        waits.requests.decrement(1.0);
        waits.waiting.fetch_sub(1, Ordering::Relaxed);
        waits.seconds.record(self.since.elapsed());
    }
}
