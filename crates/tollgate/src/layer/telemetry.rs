//! Metrics and spans for decisions. Records metrics only with the feature `metrics`, and spans only
//! while a subscriber is interested.

#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tollgate_core::{Decision, Outcome, Source, StoreError, Verdict};
use tracing::field::Empty;
use tracing::{Level, Span};

use super::compiled::CompiledLimits;
use super::row::Row;
use crate::RequestHead;
use crate::observe::{CountedOutcome, source_name};
#[cfg(feature = "metrics")]
use crate::observe::{ObservedPolicy, Observer, Started, Timer, Waiting};

pub(super) struct Telemetry {
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

#[derive(Default)]
pub(super) struct Observed {
    #[cfg(feature = "metrics")]
    pub(super) observer: Option<Observer>,
    #[cfg(feature = "metrics")]
    pub(super) endpoint: Option<String>,
}

#[derive(Default)]
pub(super) struct DecisionTimer {
    /// Whether the request waited in the queue. If so, its duration is not the store's duration.
    pub(super) has_waited: bool,
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

pub(super) struct WaitTimer {
    #[cfg(feature = "metrics")]
    _waiting: Waiting,
}

impl WaitTimer {
    pub(super) fn stop(self) {}
}

impl Telemetry {
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nothing is counted"))]
    pub(super) fn new(limits: &CompiledLimits, observed: &Observed) -> Self {
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
    pub(super) fn start(
        &self,
        limits: &CompiledLimits,
        rows: &[Row],
        head: &RequestHead<'_>,
    ) -> DecisionTimer {
        let mut timer = DecisionTimer::default();
        if tracing::span_enabled!(target: SPANS, Level::DEBUG, "decision") {
            timer.spans = Some(Spans::new(limits, rows));
        }
        #[cfg(feature = "metrics")]
        {
            timer.endpoint = self.endpoint_of(head);
            // Started last, so that other work here is not measured.
            timer.started = self.timer.start();
        }
        timer
    }

    #[inline]
    pub(super) fn record(
        &self,
        limits: &CompiledLimits,
        rows: &[Row],
        timer: &DecisionTimer,
        reply: &Result<Verdict, StoreError>,
        store: &'static str,
    ) {
        if cfg!(not(feature = "metrics")) && timer.spans.is_none() {
            return;
        }
        #[cfg(feature = "metrics")]
        let seconds = timer.started.map(|started| self.timer.stop(started, store));
        for (index, row) in rows.iter().enumerate() {
            let limit = limits.of(row);
            let (outcome, decision, source) = match reply {
                Ok(verdict) => {
                    let decision = verdict.decisions().get(index);
                    let source = verdict.source();
                    let outcome =
                        decision.and_then(|it| CountedOutcome::of(&limit.limit, it, source));
                    // If another policy denies the request, this policy did not fail open.
                    let is_meant = |outcome: &CountedOutcome| {
                        verdict.is_admitted() || *outcome != CountedOutcome::FailedOpen
                    };
                    (outcome.filter(is_meant), decision, source)
                }
                Err(error) => (failure(limits, rows, row, error), None, Source::Store),
            };
            #[cfg(feature = "metrics")]
            {
                let Row { limit: number, kind, cost, .. } = row;
                let policy = &self.policies[usize::from(*number)];
                // A penalty allows without charging.
                let charges = !limit.limit.policy.is_penalty();
                let cost = if charges { cost.get() } else { 0 };
                policy.count(*kind, cost, timer.endpoint as usize, outcome, decision, source);
                if outcome == Some(CountedOutcome::Deny) {
                    policy.denied(&row.key, *kind);
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
    pub(super) fn start_waiting(&self, limit: usize) -> WaitTimer {
        WaitTimer {
            #[cfg(feature = "metrics")]
            _waiting: Waiting::new(Arc::clone(&self.policies[limit])),
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn policies(&self) -> impl Iterator<Item = &ObservedPolicy> {
        self.policies.iter().map(|policy| &**policy)
    }

    #[cfg(feature = "metrics")]
    #[inline]
    fn endpoint_of(&self, head: &RequestHead<'_>) -> u32 {
        let endpoint = self.endpoint.unwrap_or_else(|| {
            let pattern = crate::key::route::pattern(head.extensions);
            pattern.map_or(crate::observe::OTHER, |pattern| self.observer.endpoint(pattern))
        });
        // There are at most a few hundred endpoints.
        endpoint as u32
    }
}

/// Returns the outcome of a row if the store could not decide. If another policy rejects the
/// request, this policy did not fail open.
#[cold]
fn failure(
    limits: &CompiledLimits,
    rows: &[Row],
    row: &Row,
    error: &StoreError,
) -> Option<CountedOutcome> {
    let mut rejecting = limits.failing_closed(rows, error).peekable();
    match rejecting.peek() {
        None => Some(CountedOutcome::FailedOpen),
        Some(_) => {
            rejecting.any(|it| std::ptr::eq(it, row)).then_some(CountedOutcome::FailedClosed)
        }
    }
}

impl Spans {
    #[cold]
    fn new(limits: &CompiledLimits, rows: &[Row]) -> Box<Self> {
        let span = |row: &Row| {
            tracing::debug_span!(
                target: SPANS,
                "decision",
                policy = limits.of(row).limit.policy.name(),
                client = row.kind.as_str(),
                cost = row.cost.get(),
                outcome = Empty,
                remaining = Empty,
                store = Empty,
                store_latency_us = Empty,
            )
        };
        Box::new(Self { spans: rows.iter().map(span).collect(), started: Instant::now() })
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
