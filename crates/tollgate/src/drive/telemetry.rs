//! Metrics and spans for decisions. Records metrics only with the feature `metrics`, and spans only
//! while a subscriber is interested.

#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tollgate_core::{Decision, Outcome, Source, StoreError};
use tollgate_engine::{AppliedLimit, Charges, Conclusion, Limits, Rejection};
use tracing::field::Empty;
use tracing::{Level, Span};

use crate::observe::{CountedOutcome, PauseSource, source_name};
#[cfg(feature = "metrics")]
use crate::observe::{ObservedPolicy, Observer, Started, Timer, Waiting};

pub(crate) struct Telemetry {
    #[cfg(feature = "metrics")]
    observer: Observer,
    #[cfg(feature = "metrics")]
    policies: Box<[Arc<ObservedPolicy>]>,
    /// The endpoint for all requests, if it does not depend on their route.
    #[cfg(feature = "metrics")]
    endpoint: Option<usize>,
    #[cfg(feature = "metrics")]
    timer: Timer,
}

#[derive(Clone, Default)]
pub(crate) struct Observed {
    #[cfg(feature = "metrics")]
    pub(crate) observer: Option<Observer>,
    #[cfg(feature = "metrics")]
    pub(crate) endpoint: Option<String>,
}

#[derive(Default)]
pub(crate) struct DecisionTimer {
    /// Whether the request waited in the queue. If so, its duration is not the store's duration.
    pub(crate) has_waited: bool,
    spans: Option<Box<Spans>>,
    #[cfg(feature = "metrics")]
    started: Option<Started>,
    #[cfg(feature = "metrics")]
    endpoint: u32,
}

struct Spans {
    started: Instant,
    spans: SmallVec<[Span; 2]>,
}

/// Counts a waiting request until this is dropped.
pub(crate) struct WaitTimer {
    #[cfg(feature = "metrics")]
    _waiting: Waiting,
}

impl Telemetry {
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nothing is counted"))]
    pub(crate) fn new(limits: &Limits, observed: &Observed) -> Self {
        #[cfg(feature = "metrics")]
        let observer = observed.observer.clone().unwrap_or_default();
        Self {
            #[cfg(feature = "metrics")]
            policies: limits.iter().map(|limit| observer.policy(limit.policy.name())).collect(),
            #[cfg(feature = "metrics")]
            endpoint: observed.endpoint.as_deref().map(|name| observer.endpoint(name)),
            #[cfg(feature = "metrics")]
            timer: Timer::default(),
            #[cfg(feature = "metrics")]
            observer,
        }
    }

    #[inline]
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nothing is counted"))]
    pub(crate) fn start<'a>(
        &self,
        limits: &Limits,
        applied: &[AppliedLimit],
        route: impl FnOnce() -> Option<&'a str>,
    ) -> DecisionTimer {
        let mut timer = DecisionTimer::default();
        if tracing::span_enabled!(target: SPANS, Level::DEBUG, "decision") {
            timer.spans = Some(Spans::new(limits, applied));
        }
        #[cfg(feature = "metrics")]
        {
            timer.endpoint = self.endpoint_of(route);
            // Started last, so that other work here is not measured.
            timer.started = self.timer.start();
        }
        timer
    }

    #[inline(always)]
    pub(crate) fn record(
        &self,
        limits: &Limits,
        charges: &Charges,
        timer: &DecisionTimer,
        conclusion: &Conclusion,
        store: &'static str,
    ) {
        if cfg!(feature = "metrics") || timer.spans.is_some() {
            self.record_each(limits, charges, timer, conclusion, store);
        }
    }

    fn record_each(
        &self,
        limits: &Limits,
        charges: &Charges,
        timer: &DecisionTimer,
        conclusion: &Conclusion,
        store: &'static str,
    ) {
        #[cfg(feature = "metrics")]
        let seconds = timer.started.map(|started| self.timer.stop(started, store));
        let is_admitted = matches!(conclusion, Conclusion::Pass(_));
        for (index, applied) in charges.iter().enumerate() {
            let limit = limits.of(applied);
            let (outcome, decision, source) = match conclusion {
                Conclusion::FailOpen(error) | Conclusion::Reject(Rejection::Undecided(error)) => {
                    (failure(limits, charges, applied, error), None, Source::Store)
                }
                Conclusion::Pass(_) | Conclusion::Reject(_) => {
                    let (decision, source) = (&applied.decision, charges.source());
                    let outcome = CountedOutcome::of(limit.mode, decision, source);
                    // If another policy denies the request, this policy did not fail open.
                    let is_meant = |outcome: &CountedOutcome| {
                        is_admitted || *outcome != CountedOutcome::FailedOpen
                    };
                    (outcome.filter(is_meant), Some(decision), source)
                }
            };
            #[cfg(feature = "metrics")]
            {
                let AppliedLimit { limit: number, kind, cost, .. } = applied;
                let policy = &self.policies[usize::from(*number)];
                // A penalty allows without charging.
                let cost = if limit.policy.is_penalty() { 0 } else { cost.get() };
                policy.count(*kind, cost, timer.endpoint as usize, outcome, decision, source);
                if outcome == Some(CountedOutcome::Deny) {
                    policy.denied(&applied.key, *kind);
                }
                if let Some(seconds) = seconds
                    && !timer.has_waited
                {
                    policy.record_duration(source, store, seconds);
                }
            }
            if let Some(spans) = &timer.spans {
                let elapsed = (!timer.has_waited).then(|| spans.started.elapsed());
                spans.record(index, outcome, decision, source_name(source, store), elapsed);
            }
        }
    }

    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
    )]
    pub(crate) fn start_waiting(&self, limit: usize) -> WaitTimer {
        WaitTimer {
            #[cfg(feature = "metrics")]
            _waiting: Waiting::new(Arc::clone(&self.policies[limit])),
        }
    }

    /// Records the numbers that the called service has sent about a limit's quota.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
    )]
    pub(crate) fn service_said(&self, limit: u8, granted: Option<u64>, remaining: u64) {
        #[cfg(feature = "metrics")]
        self.policies[usize::from(limit)].service_said(granted, remaining);
    }

    /// Records a pause that this process has started.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::unused_self, reason = "nothing is counted")
    )]
    pub(crate) fn paused(
        &self,
        limits: &Limits,
        applied: &AppliedLimit,
        length: Duration,
        source: PauseSource<'_>,
    ) {
        let policy = limits.policy(applied).name();
        let (text, header) = match source {
            PauseSource::Header(header) => ("paused by the service", Some(header)),
            PauseSource::Unnamed => ("paused by the service", None),
            PauseSource::Program => ("paused by the program", None),
        };
        tracing::info!(target: "tollgate", policy, ?length, header, "{text}");
        #[cfg(feature = "metrics")]
        self.policies[usize::from(applied.limit)].paused(length, source);
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn policies(&self) -> impl Iterator<Item = &ObservedPolicy> {
        self.policies.iter().map(|policy| &**policy)
    }

    #[cfg(feature = "metrics")]
    #[inline]
    fn endpoint_of<'a>(&self, route: impl FnOnce() -> Option<&'a str>) -> u32 {
        let endpoint = self.endpoint.unwrap_or_else(|| {
            route().map_or(crate::observe::OTHER, |pattern| self.observer.endpoint(pattern))
        });
        // There are at most a few hundred endpoints.
        endpoint as u32
    }
}

/// Returns a limit's outcome if the store could not decide. If another policy rejects the
/// request, this policy did not fail open.
#[cold]
fn failure(
    limits: &Limits,
    charges: &Charges,
    applied: &AppliedLimit,
    error: &StoreError,
) -> Option<CountedOutcome> {
    let mut rejecting = limits.failing_closed(charges, error).peekable();
    match rejecting.peek() {
        None => Some(CountedOutcome::FailedOpen),
        Some(_) => {
            rejecting.any(|it| std::ptr::eq(it, applied)).then_some(CountedOutcome::FailedClosed)
        }
    }
}

impl Spans {
    #[cold]
    fn new(limits: &Limits, applied: &[AppliedLimit]) -> Box<Self> {
        let span = |applied: &AppliedLimit| {
            tracing::debug_span!(
                target: SPANS,
                "decision",
                policy = limits.of(applied).policy.name(),
                client = applied.kind.as_str(),
                cost = applied.cost.get(),
                outcome = Empty,
                remaining = Empty,
                store = Empty,
                store_latency_us = Empty,
            )
        };
        Box::new(Self { spans: applied.iter().map(span).collect(), started: Instant::now() })
    }

    #[cold]
    fn record(
        &self,
        index: usize,
        outcome: Option<CountedOutcome>,
        decision: Option<&Decision>,
        store: &str,
        elapsed: Option<Duration>,
    ) {
        let Some(span) = self.spans.get(index) else { return };
        span.record("outcome", outcome.map_or("pass", CountedOutcome::as_str));
        // An undecided policy has only placeholder numbers.
        if let Some(decision) = decision.filter(|it| it.outcome != Outcome::Undecided) {
            span.record("remaining", decision.remaining);
        }
        span.record("store", store);
        if let Some(elapsed) = elapsed {
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
            span.record("store_latency_us", micros);
        }
    }
}

/// The target of the spans. It differs from the events' target, so that a filter can sample spans.
const SPANS: &str = "tollgate::decision";
