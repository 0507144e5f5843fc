//! What requests share: the store, the limits, and the records of decisions.

use tollgate_core::{AnyStore, Cost, Micros, Reply, Store, StoreError, Timestamp};
use tollgate_engine::{
    AppliedLimit, Asking, Charges, Conclusion, Limits, Mode, Question, Refunds, Rejection, Request,
    Sleeping, Step,
};
use tracing::Level;

use super::follow_up::FollowUp;
use super::in_flight::PermitRenewer;
use super::outage::Outage;
use super::receipts::{next_id, settle};
use super::telemetry::{DecisionTimer, Observed, Telemetry};

/// Decides requests with a store. `X` is the data of the interface that hands them in.
pub(crate) struct Driver<St, X> {
    pub(crate) store: St,
    pub(crate) limits: Limits,
    pub(crate) face: X,
    pub(crate) telemetry: Telemetry,
    /// What is refunded if a caller leaves before the first reply.
    pub(super) abandoned: Refunds,
    outage: Outage,
    /// The store, if charges may be corrected when a request's outcome is known.
    settles: Option<AnyStore>,
    renewer: Option<PermitRenewer<St>>,
    /// Whether requests that pass may have a [`FollowUp`].
    follows_up: bool,
}

/// A request that the store decides: its charges, with their decisions after the reply. Once it has
/// passed, only the charges that its response needs.
#[derive(Default)]
pub(crate) struct Decided {
    pub(crate) charges: Charges,
    /// State for a request that passed. Most requests have none.
    pub(crate) follow_up: Option<Box<FollowUp>>,
}

/// What a request waits for.
pub(super) enum Next<F> {
    Reply(Asking, F),
    Sleep(Sleeping),
}

impl<St: Store, X> Driver<St, X> {
    pub(crate) fn new(
        store: St,
        limits: Limits,
        face: X,
        abandoned: Refunds,
        observed: &Observed,
    ) -> Self {
        let settles = limits.iter().any(|limit| limit.corrects.any());
        let settles = settles.then(|| AnyStore::new(store.clone()));
        let in_tiers = limits.iter().flat_map(|limit| limit.in_tiers.iter());
        let policies = limits.iter().map(|limit| &limit.policy).chain(in_tiers);
        let renewer = PermitRenewer::new(&store, policies);
        let is_soft = limits.iter().any(|limit| limit.mode == Mode::Annotate);
        Self {
            telemetry: Telemetry::new(&limits, observed),
            follows_up: settles.is_some() || renewer.is_some() || is_soft,
            store,
            limits,
            face,
            abandoned,
            outage: Outage::default(),
            settles,
            renewer,
        }
    }

    /// Asks the store about these charges.
    #[inline(always)]
    pub(super) fn ask(&self, question: Question, applied: &[AppliedLimit]) -> Reply<St::Future> {
        match (question, applied) {
            (Question::Charge, [applied]) => self.store.decide(&[self.limits.charge(applied)]),
            _ => self.store.decide(&question.charges(&self.limits, applied)),
        }
    }

    /// Whether requests may wait for long. If so, they must not occupy a ready service.
    pub(crate) const fn may_wait(&self) -> bool {
        self.limits.may_wait() || self.limits.delaying().is_some()
    }

    /// Records a decision, and collects the state of a request that passes. Returns its delay,
    /// which is at most `patience`.
    #[inline(always)]
    pub(super) fn conclude(
        &self,
        decided: &mut Decided,
        timer: &DecisionTimer,
        conclusion: Conclusion,
        patience: Micros,
    ) -> Result<Micros, Rejection> {
        let conclusion = match conclusion {
            Conclusion::Pass(delay) if delay > patience => self.give_up(decided, patience),
            conclusion => conclusion,
        };
        let Decided { charges, follow_up } = decided;
        self.telemetry.record(&self.limits, charges, timer, &conclusion, self.store.name());
        let result = match conclusion {
            Conclusion::Pass(delay) => Ok(delay),
            Conclusion::FailOpen(error) => {
                self.failed(&error, true);
                charges.clear();
                return Ok(Micros::ZERO);
            }
            Conclusion::Reject(Rejection::Undecided(error)) => {
                self.failed(&error, false);
                return Err(Rejection::Undecided(error));
            }
            Conclusion::Reject(rejection) => Err(rejection),
        };
        if self.outage.is_on() {
            self.outage.decided();
        }
        if result.is_ok() {
            if tracing::enabled!(target: "tollgate", Level::DEBUG) {
                self.log_pass(charges);
            }
            if self.follows_up {
                let (settles, renewer) = (self.settles.as_ref(), self.renewer.as_ref());
                *follow_up = FollowUp::of(charges, &self.limits, settles, renewer);
            }
        }
        result
    }

    /// Refunds and rejects a request if a leaky bucket delays it for too long.
    #[cold]
    fn give_up(&self, decided: &mut Decided, patience: Micros) -> Conclusion {
        self.refund(Refunds::All, &decided.charges);
        decided.charges.deny_delay(&self.limits, patience);
        Conclusion::Reject(Rejection::TooLate)
    }

    #[cold]
    fn log_pass(&self, charges: &Charges) {
        tracing::debug!(target: "tollgate", remaining = charges.remaining(), "allow");
        for applied in charges.iter().filter(|applied| applied.decision.denies()) {
            let limit = self.limits.of(applied);
            let policy = limit.policy.name();
            match limit.mode {
                Mode::Shadow => tracing::debug!(target: "tollgate", policy, "shadow deny"),
                _ => tracing::debug!(target: "tollgate", policy, "annotate"),
            }
        }
    }

    #[cold]
    fn failed(&self, error: &StoreError, passes: bool) {
        self.outage.failed(error, passes);
        let outcome = if passes { "failed open" } else { "failed closed" };
        tracing::debug!(target: "tollgate", %error, "{outcome}");
    }

    /// Takes all steps that need no waiting.
    pub(super) fn advance(
        &self,
        request: &mut Request,
        mut step: Step,
        now: impl Fn() -> Timestamp,
    ) -> Result<Conclusion, Next<St::Future>> {
        loop {
            step = match step {
                Step::Done(conclusion) => return Ok(conclusion),
                Step::Sleep(sleeping) => return Err(Next::Sleep(sleeping)),
                Step::Ask(asking) => match self.ask(asking.question, request.charges()).now() {
                    Ok(reply) => request.on_reply(asking, &self.limits, reply, now()),
                    Err(reply) => return Err(Next::Reply(asking, reply)),
                },
            };
        }
    }

    /// Refunds charges without waiting for the store.
    pub(super) fn refund(&self, refunds: Refunds, charges: &Charges) {
        let next_id = || next_id(charges.decided_at());
        for receipt in refunds.of(&self.limits, charges, next_id) {
            settle(&self.store, receipt, Cost::ZERO, None);
        }
    }
}
