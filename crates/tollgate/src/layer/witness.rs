//! The one place where the layer tells what it decides, for those who run it. Without the
//! feature `metrics`, and while no subscriber wants spans, there is nothing to it.

use std::fmt;
use std::time::Instant;

use smallvec::SmallVec;
#[cfg(feature = "metrics")]
use std::sync::Arc;
#[cfg(feature = "admin")]
use tollgate_core::Key;
use tollgate_core::{Decision, Source, StoreError, Verdict};
use tracing::field::Empty;
use tracing::{Level, Span};

use super::options::Options;
use super::question::Keyed;
use super::rules::Rule;
use crate::Head;
use crate::observe::Answer;
#[cfg(feature = "metrics")]
use crate::observe::{ObservedPolicy, Observer, Seen, Started, Timer, Waiting};

/// Sees every decision of a layer, once.
pub(super) struct Witness {
    #[cfg(feature = "metrics")]
    observer: Observer,
    /// One per rule, in their order.
    #[cfg(feature = "metrics")]
    policies: Box<[Arc<ObservedPolicy>]>,
    /// Of all requests, if it does not depend on their route.
    #[cfg(feature = "metrics")]
    endpoint: Option<usize>,
    #[cfg(feature = "metrics")]
    timer: Timer,
}

/// What was seen of a request before the store was asked.
///
/// It is moved with each request, so it is kept small.
pub(super) struct Sight {
    /// The time that passes is not the store's alone.
    waits: bool,
    spans: Option<Box<Spans>>,
    #[cfg(feature = "metrics")]
    started: Option<Started>,
    #[cfg(feature = "metrics")]
    endpoint: u32,
    /// One per rule that applies.
    #[cfg(feature = "metrics")]
    seen: SmallVec<[Seen; 4]>,
    /// The same, in case that one denies.
    #[cfg(feature = "admin")]
    keys: SmallVec<[Key; 4]>,
}

/// A span for each decision.
struct Spans {
    started: Instant,
    spans: SmallVec<[Span; 2]>,
}

/// A request that waits for its turn, for as long as it lives.
pub(super) struct Waits {
    #[cfg(feature = "metrics")]
    _waiting: Option<Waiting>,
}

impl Witness {
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nobody looks"))]
    pub(super) fn new(rules: &[Rule], options: &Options) -> Self {
        #[cfg(feature = "metrics")]
        let observer = options.observer.clone().unwrap_or_default();
        Self {
            #[cfg(feature = "metrics")]
            policies: rules.iter().map(|rule| observer.policy(rule.limit.policy.name())).collect(),
            #[cfg(feature = "metrics")]
            endpoint: options.endpoint.as_deref().map(|name| observer.endpoint(name)),
            #[cfg(feature = "metrics")]
            timer: Timer::default(),
            #[cfg(feature = "metrics")]
            observer,
        }
    }

    /// The store is about to be asked.
    #[inline]
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nobody looks"))]
    pub(super) fn look(&self, rules: &[Rule], keyed: &[Keyed<'_>], head: &Head<'_>) -> Sight {
        let wanted = tracing::span_enabled!(target: SPANS, Level::DEBUG, "decision");
        Sight {
            waits: false,
            spans: wanted.then(|| Spans::new(rules, keyed)),
            #[cfg(feature = "metrics")]
            endpoint: self.endpoint_of(head),
            #[cfg(feature = "metrics")]
            seen: SmallVec::new_const(),
            #[cfg(feature = "admin")]
            keys: SmallVec::new_const(),
            // Last, so that what comes before is not taken for the store's.
            #[cfg(feature = "metrics")]
            started: self.timer.start(),
        }
    }

    /// The store has answered.
    #[inline]
    pub(super) fn tell<'a>(
        &self,
        applied: impl Iterator<Item = (usize, &'a Rule)> + Clone,
        sight: &Sight,
        answer: &Result<Verdict, StoreError>,
        store: &'static str,
    ) {
        if cfg!(not(feature = "metrics")) && sight.spans.is_none() {
            // Nobody looks, so there is nothing to read out of the answer.
            return;
        }
        #[cfg(feature = "metrics")]
        let seconds = sight.started.map(|started| self.timer.stop(started, store));
        let is_refused = match answer {
            Ok(verdict) => !verdict.is_admitted(),
            Err(error) => applied.clone().any(|(_, rule)| rule.refuses_after(error)),
        };
        for (place, (index, rule)) in applied.enumerate() {
            let (word, decision, source) = Self::read(place, rule, answer);
            // Nothing failed open that was refused: another policy has seen to it.
            let word = word.filter(|word| !(is_refused && *word == Answer::FailedOpen));
            #[cfg(feature = "metrics")]
            if let Some(seen) = sight.seen.get(place) {
                let policy = &self.policies[index];
                // A penalty lets pass and takes nothing.
                let takes = !rule.limit.policy.penalises();
                policy.saw(*seen, takes, sight.endpoint as usize, word, decision);
                #[cfg(feature = "admin")]
                if let (Some(Answer::Deny), Some(key)) = (word, sight.keys.get(place)) {
                    policy.denied(key, *seen);
                }
                if let Some(seconds) = seconds
                    && !sight.waits
                {
                    policy.took(source, store, seconds);
                }
            }
            if let Some(spans) = &sight.spans {
                spans.tell(place, word, decision, source, store);
                if !sight.waits {
                    spans.time(place);
                }
            }
            let _ = (index, source, store);
        }
    }

    /// What the answer says of one rule.
    #[inline]
    fn read<'a>(
        place: usize,
        rule: &Rule,
        answer: &'a Result<Verdict, StoreError>,
    ) -> (Option<Answer>, Option<&'a Decision>, Source) {
        match answer {
            Ok(verdict) => {
                let decision = verdict.decisions().get(place);
                let source = verdict.source();
                let word = decision.and_then(|it| Answer::of(&rule.limit, it, source));
                (word, decision, source)
            }
            Err(error) => (Some(Answer::after(error, &rule.limit)), None, Source::Store),
        }
    }

    /// A request waits for its turn in the queue of a rule.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nobody looks")
    )]
    pub(super) fn waits(&self, queue: Option<usize>) -> Waits {
        Waits {
            #[cfg(feature = "metrics")]
            _waiting: queue.map(|rule| Waiting::new(Arc::clone(&self.policies[rule]))),
        }
    }

    /// What is kept of a rule's policy.
    #[cfg(feature = "metrics")]
    pub(super) fn policy(&self, rule: usize) -> &ObservedPolicy {
        &self.policies[rule]
    }

    #[cfg(feature = "metrics")]
    #[inline]
    fn endpoint_of(&self, head: &Head<'_>) -> u32 {
        let endpoint = self.endpoint.unwrap_or_else(|| {
            let pattern = crate::key::route::pattern(head.extensions);
            pattern.map_or(crate::observe::OTHER, |pattern| self.observer.endpoint(pattern))
        });
        // There are some hundreds at the most.
        endpoint as u32
    }
}

impl Sight {
    /// The request waits before it is decided.
    pub(super) const fn waits(&mut self) {
        self.waits = true;
    }

    pub(super) const fn has_waited(&self) -> bool {
        self.waits
    }

    /// What the store was asked, to be remembered until it answers.
    #[inline]
    #[cfg_attr(not(feature = "metrics"), expect(unused_variables, unused_mut, reason = "unseen"))]
    pub(super) fn keeping(mut self, keyed: &[Keyed<'_>]) -> Self {
        #[cfg(feature = "metrics")]
        for &Keyed { subject, cost, .. } in keyed {
            self.seen.push(Seen::new(subject.kind, cost));
            #[cfg(feature = "admin")]
            self.keys.push(subject.key.clone());
        }
        self
    }
}

impl Spans {
    #[cold]
    fn new(rules: &[Rule], keyed: &[Keyed<'_>]) -> Box<Self> {
        let span = |keyed: &Keyed<'_>| {
            tracing::debug_span!(
                target: SPANS,
                "decision",
                policy = rules[keyed.index].limit.policy.name(),
                client = keyed.subject.kind.as_str(),
                cost = keyed.cost.get(),
                outcome = Empty,
                remaining = Empty,
                store = Empty,
                store_latency_us = Empty,
            )
        };
        Box::new(Self { spans: keyed.iter().map(span).collect(), started: Instant::now() })
    }

    #[cold]
    fn tell(
        &self,
        place: usize,
        word: Option<Answer>,
        decision: Option<&Decision>,
        source: Source,
        store: &'static str,
    ) {
        let Some(span) = self.spans.get(place) else { return };
        span.record("outcome", word.map_or("pass", Answer::as_str));
        if let Some(decision) = decision {
            span.record("remaining", decision.remaining);
        }
        let store = match source {
            Source::Store => store,
            Source::Local => "local",
            Source::Cache => "cache",
            Source::Lease => "lease",
        };
        span.record("store", store);
    }

    #[cold]
    fn time(&self, place: usize) {
        let Some(span) = self.spans.get(place) else { return };
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        span.record("store_latency_us", micros);
    }
}

/// The target of the spans, apart from that of the events, so that a filter can sample them.
const SPANS: &str = "tollgate::decision";

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}
