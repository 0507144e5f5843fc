//! The fourth step of a request, from the answer of the store to an action; and the last, from the
//! verdict to the response.

use std::mem;
use std::time::Duration;

use http::Response;
use smallvec::SmallVec;
use tokio::time::sleep;
use tollgate_core::{
    Decision, Key, Micros, OnStoreError, Outcome, Source, Store, StoreError, Timestamp, Verdict,
};

use super::action::{
    Action, Admission, Allowance, Allowances, Answer, OwnResponse, RequestContext, ResponseWork,
    Waiting,
};
use super::cancel::CancelGuard;
use super::limits::{AppliedLimits, CompiledLimit, Resolved};
use super::settlement::{corrected, open_charges, settle_by_response};
use super::state::LayerState;
use super::verdicts::Verdicts;
use crate::body::InFlight;
use crate::denial::Denial;
use crate::headers;
use crate::{RequestHead, ResponseHead};

impl<St: Store> LayerState<St> {
    #[inline]
    pub(super) fn conclude(
        &self,
        answer: Answer,
        context: &mut RequestContext,
        head: &RequestHead<'_>,
    ) -> Action<St> {
        if self.is_plain
            && !self.outage.is_on()
            && let Ok(verdict) = &answer
            && verdict.is_admitted()
            && verdict.source() != Source::Local
            && verdict.decisions().iter().all(|decision| decision.outcome != Outcome::Undecided)
        {
            self.record(&answer, context);
            tracing::debug!(target: "tollgate", remaining = remaining(verdict), "allow");
            return Action::Forward(self.fields(verdict, context));
        }
        self.conclude_with_care(answer, context, head)
    }

    #[inline(never)]
    fn conclude_with_care(
        &self,
        answer: Answer,
        context: &mut RequestContext,
        head: &RequestHead<'_>,
    ) -> Action<St> {
        if let Some(queue) = &self.wait_queue
            && let Some(answer) = self.wait(queue, &answer, context, head)
        {
            let context = mem::take(context);
            return Action::Wait(Box::new(Waiting::Decision { answer, context }));
        }
        self.record(&answer, context);
        if answer.is_ok() && self.outage.is_on() {
            self.outage.decided();
        }
        match answer {
            Ok(verdict) if verdict.is_admitted() => self.forward(verdict, context),
            Ok(verdict) => Action::Respond(self.deny(&verdict, context, head)),
            Err(error) => self.without_verdict(&error, context.applied(), head),
        }
    }

    #[inline]
    fn fields(&self, verdict: &Verdict, context: &RequestContext) -> ResponseWork {
        if !self.options.headers.any() {
            return ResponseWork::None;
        }
        let mut numbers = SmallVec::new_const();
        for &Decision { limit, remaining, reset_after, .. } in verdict.decisions() {
            numbers.push(Allowance { limit, remaining, reset_after });
        }
        let (decided_at, applied) = (verdict.decided_at(), context.applied());
        ResponseWork::Fields(Allowances { decided_at, applied, numbers })
    }

    fn forward(&self, verdict: Verdict, context: &RequestContext) -> Action<St> {
        tracing::debug!(target: "tollgate", remaining = remaining(&verdict), "allow");
        let applied = context.applied();
        self.trace_shadows(&verdict, applied);
        let delay = self.delay(&verdict, applied);
        let keeps = self.settles.is_some() || self.leases.is_some() || delay > Micros::ZERO;
        let charges = if keeps { context.owned_charges(&self.limits) } else { Default::default() };
        let limits = self.applied(applied).map(|compiled| &compiled.limit);
        let store = self.settles.as_ref();
        let open = store.and_then(|store| open_charges(store, &verdict, &charges, &limits));
        let hold = self.leases.as_ref().map(|leases| leases.hold(&verdict, &charges));
        let in_flight = hold.unwrap_or_default();
        let turn = self.delays.filter(|_| delay > Micros::ZERO).map(|limit| {
            // The admission holds the permits.
            let guard = CancelGuard::charged(&self.store, charges, verdict.clone(), |policy| {
                !policy.is_concurrency()
            });
            let turn = Box::pin(sleep(Duration::from(delay)));
            (turn, Some((guard, self.telemetry.start_waiting(limit))))
        });
        let work = if self.works_on_responses() {
            let admission = Admission { verdict, applied, open, in_flight };
            ResponseWork::Full(Box::new(admission))
        } else {
            ResponseWork::None
        };
        match turn {
            None => Action::Forward(work),
            Some((turn, guard)) => Action::Wait(Box::new(Waiting::Turn { turn, guard, work })),
        }
    }

    /// Adds the headers to a response. Returns the permits of the request, which the body holds
    /// until its end.
    #[inline]
    pub(super) fn finish<B>(&self, response: &mut Response<B>, work: ResponseWork) -> InFlight {
        let options = &self.options.headers;
        match work {
            ResponseWork::None => self.remove_costs(response.headers_mut()),
            ResponseWork::Fields(Allowances { decided_at, applied, numbers }) => {
                let mut decisions = SmallVec::<[_; 2]>::new_const();
                for allowance in &numbers {
                    decisions.push(allowance.decision());
                }
                let fields = self.applied(applied).map(|limit| limit.fields(applied.tier));
                options.write(response.headers_mut(), decided_at, false, fields.zip(&decisions));
            }
            ResponseWork::Full(admission) => return self.finish_fully(response, *admission),
        }
        InFlight::default()
    }

    fn finish_fully<B>(&self, response: &mut Response<B>, admission: Admission) -> InFlight {
        let Admission { verdict, applied, open, in_flight } = admission;
        let corrected = open.and_then(|open| {
            let limits = self.applied(applied).map(|compiled| &compiled.limit);
            settle_by_response(&open, &ResponseHead::of(response), limits);
            corrected(&open, &verdict)
        });
        self.remove_costs(response.headers_mut());
        let shown = corrected.as_ref().unwrap_or(&verdict);
        let rows = self.rows(shown, applied);
        self.options.headers.write(response.headers_mut(), verdict.decided_at(), false, rows);
        headers::tell_of_reduction(response.headers_mut(), &verdict);
        if self.options.expose_verdicts {
            Verdicts::push_outer(response.extensions_mut(), verdict);
        }
        in_flight
    }

    fn deny(
        &self,
        verdict: &Verdict,
        context: &RequestContext,
        head: &RequestHead<'_>,
    ) -> OwnResponse {
        let rows = || self.rows(verdict, context.applied());
        let at = verdict.decided_at();
        // The keys of all policies that apply: the seed is the same whichever policy denies.
        let seed = seed_of(context.resolved.iter().map(|resolved| &resolved.subject.key));
        let cost = |policy: &str| {
            let mut resolved = context.resolved.iter();
            let is_meant = |it: &&Resolved| self.limits[it.limit].limit.policy.name() == policy;
            resolved.find(is_meant).map(|it| it.cost)
        };
        let denial = Denial::of_verdict(at, rows(), &self.options.headers, seed);
        let denial = denial.of_request(*head, cost);
        // At level debug, because a client can cause any number of them. Metrics count them.
        tracing::debug!(
            target: "tollgate",
            policies = ?denial.policies(),
            keys = ?context.resolved.iter().map(|it| it.subject.kind.as_str()).collect::<Vec<_>>(),
            reason = denial.reason().code(),
            retry_after = ?denial.retry_after(),
            "deny",
        );
        let mut response = self.respond(&denial, head);
        self.options.headers.write(response.headers_mut(), at, true, rows());
        headers::tell_of_reduction(response.headers_mut(), verdict);
        if self.options.expose_verdicts {
            Verdicts::push_outer(response.extensions_mut(), verdict.clone());
        }
        response
    }

    /// The store could not decide: the failure policies decide. A policy with a local fallback
    /// rejects, because its local store could not decide either.
    fn without_verdict(
        &self,
        error: &StoreError,
        applied: AppliedLimits,
        head: &RequestHead<'_>,
    ) -> Action<St> {
        let rejecting = self.applied(applied).filter(|limit| limit.fails_closed(error));
        // A local policy would have been decided, except beside a closed one.
        let is_closed = |limit: &&CompiledLimit| limit.on_error(error) == OnStoreError::Closed;
        let any_is_closed = rejecting.clone().any(|limit| is_closed(&limit));
        let mut rejecting = rejecting.filter(|limit| !any_is_closed || is_closed(limit)).peekable();
        let passes = rejecting.peek().is_none();
        self.outage.failed(error, passes);
        if passes {
            tracing::debug!(target: "tollgate", %error, "failed open");
            return Action::Forward(ResponseWork::None);
        }
        tracing::debug!(target: "tollgate", %error, "failed closed");
        let probe = error.retry_after().unwrap_or(PROBE);
        let denial =
            Denial::store_unavailable(rejecting.map(|limit| limit.fields(applied.tier)), probe);
        Action::Respond(self.respond(&denial.of_request(*head, |_| None), head))
    }

    /// The delay of enforced policies. That of the verdict would include shadow policies.
    fn delay(&self, verdict: &Verdict, applied: AppliedLimits) -> Micros {
        if self.delays.is_none() {
            return Micros::ZERO;
        }
        let delays = self.rows(verdict, applied).map(|(_, decision)| decision.delay());
        delays.max().unwrap_or_default()
    }

    fn trace_shadows(&self, verdict: &Verdict, applied: AppliedLimits) {
        for (compiled, decision) in self.applied(applied).zip(verdict.decisions()) {
            if decision.denies() && !compiled.limit.enforce {
                let policy = compiled.limit.policy.name();
                tracing::debug!(target: "tollgate", policy, "shadow deny");
            }
        }
    }
}

/// The `Retry-After` if the store does not know when it will decide again.
const PROBE: Micros = Micros::new(1_000_000);

fn remaining(verdict: &Verdict) -> Option<u64> {
    let decided =
        verdict.decisions().iter().filter(|decision| decision.outcome != Outcome::Undecided);
    decided.map(|decision| decision.remaining).min()
}

impl Allowance {
    fn decision(&self) -> Decision {
        let Self { limit, remaining, reset_after } = *self;
        let outcome = Outcome::Allow { delay: Micros::ZERO, charged_at: Timestamp::EPOCH };
        Decision { outcome, limit, remaining, reset_after }
    }
}

/// A number that is the same for a client on all replicas (FNV-1a over its keys).
pub(super) fn seed_of<'a>(keys: impl Iterator<Item = &'a Key>) -> u64 {
    let step = |seed: u64, byte: &u8| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    keys.fold(0xcbf2_9ce4_8422_2325, |seed, key| key.as_bytes().iter().fold(seed, step))
}
