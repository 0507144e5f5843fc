//! What the answer of the store means for a request and its response.

use bytes::Bytes;
use http::{Extensions, HeaderValue, Response};
use tollgate_core::{Decision, Micros, OnStoreError, Outcome, Store, StoreError, Verdict};
use tracing::level_filters::LevelFilter;

use super::explain;
use super::question::{Asked, Question};
use super::queued::Charged;
use super::reservation::OpenCharges;
use super::rules::{Applied, Rule, Rules, bits};
use super::verdicts::Verdicts;
use super::witness::Sight;
use crate::body::InFlight;
use crate::denial::{Denial, Dialect};
use crate::headers::{self, PolicyFields, X_RATELIMIT_EXPLAIN};
use crate::{Head, ResponseHead};

/// What is to be done with a request.
pub(super) enum Ruling<St: Store> {
    /// It goes on to the service, without any trace.
    Pass,
    /// It goes on after `delay`; the response will tell of the verdict.
    Admit { admitted: Admitted, delay: Micros, charged: Option<Box<[Charged]>> },
    /// It enters the wait queue.
    Wait(Asked<St>),
    /// It ends here.
    Refuse(Box<Response<Bytes>>),
}

/// A verdict on its way into the response.
pub(super) struct Admitted {
    pub(super) verdict: Verdict,
    applied: Applied,
    /// What few layers have besides: this is moved with each request, so it is kept small.
    rest: Option<Box<Rest>>,
}

/// What an admission leaves to be done.
struct Rest {
    /// What the response or the handler will settle.
    open: Option<OpenCharges>,
    /// What the response explains.
    explained: Option<HeaderValue>,
    /// What the request holds until it is over.
    in_flight: InFlight,
}

impl Admitted {
    /// The verdict, and what the request holds until it is over.
    pub(super) fn into_parts(self) -> (Verdict, InFlight) {
        let in_flight = self.rest.map_or_else(InFlight::default, |rest| rest.in_flight);
        (self.verdict, in_flight)
    }
}

impl<St: Store> Rules<St> {
    /// What the answer of the store means for the request.
    #[inline]
    pub(super) fn rule(
        &self,
        answer: Result<Verdict, StoreError>,
        question: Question,
        head: &Head<'_>,
    ) -> Ruling<St> {
        if self.passes_untold(&answer, question.applied, &question.sight) {
            return Ruling::Pass;
        }
        self.weigh(answer, question, head)
    }

    /// Whether the request goes on and neither client nor log is told why: then the answer is
    /// not worth carrying on. Who counts has seen it.
    #[inline]
    pub(super) fn passes_untold(
        &self,
        answer: &Result<Verdict, StoreError>,
        applied: Applied,
        sight: &Sight,
    ) -> bool {
        let is_untold = self.is_silent
            && LevelFilter::current() < LevelFilter::DEBUG
            && !self.outage.is_on()
            && answer.as_ref().is_ok_and(Verdict::is_admitted);
        if is_untold {
            self.see(answer, applied, sight);
        }
        is_untold
    }

    fn see(&self, answer: &Result<Verdict, StoreError>, applied: Applied, sight: &Sight) {
        let applied = bits(applied.rules).map(|index| (index, &self.rules[index]));
        self.witness.tell(applied, sight, answer, self.store.name());
    }

    /// The same of an answer that somebody may be told of.
    pub(super) fn weigh(
        &self,
        answer: Result<Verdict, StoreError>,
        mut question: Question,
        head: &Head<'_>,
    ) -> Ruling<St> {
        let (answer, explained) = self.explained(answer, question.applied);
        if self.room.is_some()
            && let Some(answer) = self.wait(&answer, &mut question)
        {
            return Ruling::Wait(Asked { answer, question });
        }
        self.see(&answer, question.applied, &question.sight);
        if answer.is_ok() && self.outage.is_on() {
            self.outage.decided();
        }
        match answer {
            Ok(verdict) if verdict.is_admitted() => {
                tracing::debug!(target: "tollgate", remaining = remaining(&verdict), "allow");
                let Question { applied, charged, .. } = question;
                self.trace_shadows(&verdict, applied);
                let delay = self.delay(&verdict, applied);
                if delay == Micros::ZERO && !self.tells() {
                    return Ruling::Pass;
                }
                let rest = self.rest(&verdict, charged.as_deref(), explained, applied);
                let admitted = Admitted { verdict, applied, rest };
                Ruling::Admit { admitted, delay, charged }
            }
            Ok(verdict) => {
                let dialect = self.dialect(head);
                let Question { applied, seed, .. } = question;
                Ruling::Refuse(Box::new(self.deny(&verdict, explained, applied, seed, dialect)))
            }
            Err(error) => self.without_verdict(&error, question.applied, head),
        }
    }

    /// The verdict on the request, and what its response says besides if it explains.
    fn explained(
        &self,
        answer: Result<Verdict, StoreError>,
        applied: Applied,
    ) -> (Result<Verdict, StoreError>, Option<HeaderValue>) {
        match answer {
            Ok(verdict) if self.options.explain => {
                let charges = self.applied(applied).count();
                let (verdict, asked) = explain::split(verdict, charges);
                let limits = self.applied(applied).map(|rule| &rule.limit);
                // Without the others this is what was said to one that has waited.
                let field = explain::field(limits, &verdict, &asked).filter(|_| !asked.is_empty());
                (Ok(verdict), field)
            }
            answer => (answer, None),
        }
    }

    /// What an admission leaves to be done, if anything.
    #[inline]
    fn rest(
        &self,
        verdict: &Verdict,
        charged: Option<&[Charged]>,
        explained: Option<HeaderValue>,
        applied: Applied,
    ) -> Option<Box<Rest>> {
        if !self.settles && self.keeper.is_none() && explained.is_none() {
            return None;
        }
        let open = self.open(verdict, charged, applied);
        let in_flight = match (&self.keeper, charged) {
            (Some(keeper), Some(charged)) => keeper.hold(verdict, charged),
            _ => InFlight::default(),
        };
        Some(Box::new(Rest { open, explained, in_flight }))
    }

    /// What is still to be settled of the charges.
    fn open(
        &self,
        verdict: &Verdict,
        charged: Option<&[Charged]>,
        applied: Applied,
    ) -> Option<OpenCharges> {
        let charged = charged.filter(|_| self.settles)?;
        let limits = self.applied(applied).map(|rule| &rule.limit);
        OpenCharges::new(&self.store, verdict, charged, &limits)
    }

    /// Puts down what the handler may read.
    pub(super) fn show(&self, extensions: &mut Extensions, admitted: &Admitted) {
        if self.options.expose_verdicts {
            Verdicts::push(extensions, admitted.verdict.clone());
        }
        if let Some(open) = admitted.rest.as_ref().and_then(|rest| rest.open.as_ref()) {
            open.hand_to(extensions);
        }
    }

    /// Settles what the response decides, and adds the verdict to it.
    pub(super) fn tell<B>(&self, response: &mut Response<B>, admitted: &Admitted) {
        let Admitted { verdict, applied, rest } = admitted;
        let open = rest.as_ref().and_then(|rest| rest.open.as_ref());
        let corrected = open.and_then(|open| {
            let limits = self.applied(*applied).map(|rule| &rule.limit);
            open.settle_by(&ResponseHead::of(response), limits);
            open.corrected(verdict)
        });
        self.remove_costs(response.headers_mut());
        let verdict = corrected.as_ref().unwrap_or(verdict);
        let rows = self.rows(verdict, *applied);
        self.options.headers.write(response.headers_mut(), verdict.decided_at(), rows);
        headers::tell_of_reduction(response.headers_mut(), verdict);
        if let Some(explained) = rest.as_ref().and_then(|rest| rest.explained.as_ref()) {
            response.headers_mut().append(X_RATELIMIT_EXPLAIN, explained.clone());
        }
    }

    fn deny(
        &self,
        verdict: &Verdict,
        explained: Option<HeaderValue>,
        applied: Applied,
        seed: u64,
        dialect: Dialect,
    ) -> Response<Bytes> {
        let rows = || self.rows(verdict, applied);
        let at = verdict.decided_at();
        let denial = Denial::of_verdict(at, rows(), &self.options.headers, seed);
        // As many as a client likes to send: what is for everybody's eyes is in the metrics.
        tracing::debug!(
            target: "tollgate",
            policies = ?denial.policies(),
            reason = denial.reason().code(),
            retry_after = ?denial.retry_after(),
            "deny",
        );
        let mut response = denial.respond(dialect, &*self.options.response);
        self.options.headers.write(response.headers_mut(), at, rows());
        headers::tell_of_reduction(response.headers_mut(), verdict);
        if let Some(explained) = explained {
            response.headers_mut().append(X_RATELIMIT_EXPLAIN, explained);
        }
        if self.options.expose_verdicts {
            Verdicts::push_outer(response.extensions_mut(), verdict.clone());
        }
        response
    }

    /// The store could not decide: policies that fail closed reject, and policies that fail open
    /// let pass. A policy that falls back to a local store rejects too: the local store could not
    /// decide either, or the request costs more than the local share.
    fn without_verdict(&self, error: &StoreError, applied: Applied, head: &Head<'_>) -> Ruling<St> {
        let refusing = self.applied(applied).filter(|rule| rule.refuses_after(error));
        // One that is decided locally would have been, but for a closed one beside it.
        let is_closed = |rule: &&Rule| rule.on_error(error) == OnStoreError::Closed;
        let any_is_closed = refusing.clone().any(|rule| is_closed(&rule));
        let mut refusing = refusing.filter(|rule| !any_is_closed || is_closed(rule)).peekable();
        let passes = refusing.peek().is_none();
        self.outage.failed(error, passes);
        if passes {
            tracing::debug!(target: "tollgate", %error, "failed open");
            return Ruling::Pass;
        }
        tracing::debug!(target: "tollgate", %error, "failed closed");
        let probe = error.retry_after().unwrap_or(PROBE);
        let denial =
            Denial::store_unavailable(refusing.map(|rule| rule.fields.of(applied.tier)), probe);
        let dialect = self.dialect(head);
        Ruling::Refuse(Box::new(denial.respond(dialect, &*self.options.response)))
    }

    /// The enforced policies and their decisions. Of a penalty clients hear when it blocks.
    fn rows<'a>(
        &'a self,
        verdict: &'a Verdict,
        applied: Applied,
    ) -> impl Iterator<Item = (&'a PolicyFields, &'a Decision)> {
        let decided = self.applied(applied).zip(verdict.decisions());
        decided
            .filter(|(rule, decision)| {
                rule.limit.enforce && (decision.denies() || !rule.limit.policy.penalises())
            })
            .map(move |(rule, decision)| (rule.fields.of(applied.tier), decision))
    }

    /// How long the request is held back. That of the verdict would count the queue of a
    /// shadow policy as well, which only watches.
    fn delay(&self, verdict: &Verdict, applied: Applied) -> Micros {
        if self.queue.is_none() {
            return Micros::ZERO;
        }
        let delays = self.rows(verdict, applied).map(|(_, decision)| decision.delay());
        delays.max().unwrap_or_default()
    }

    fn trace_shadows(&self, verdict: &Verdict, applied: Applied) {
        for (rule, decision) in self.applied(applied).zip(verdict.decisions()) {
            if decision.denies() && !rule.limit.enforce {
                let policy = rule.limit.policy.name();
                tracing::debug!(target: "tollgate", policy, "shadow deny");
            }
        }
    }
}

/// A source is asked to come back so soon when the store does not know when it is back.
const PROBE: Micros = Micros::new(1_000_000);

/// The smallest remainder, for the event of an allowed request.
fn remaining(verdict: &Verdict) -> Option<u64> {
    let decided = verdict.decisions().iter().filter(|decision| decision.outcome != Outcome::Skip);
    decided.map(|decision| decision.remaining).min()
}
