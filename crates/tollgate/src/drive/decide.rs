//! Decides a request, immediately if possible.

use std::mem;
use std::sync::Arc;

use tollgate_core::{Micros, Store, Timestamp};
use tollgate_engine::{Arrival, Conclusion, Question, Rejection, Request, Step};

use super::driver::{Decided, Driver, Next};
use super::telemetry::DecisionTimer;
use super::waiting::{self, Waiting};

/// The result of [`Driver::decide`].
pub(crate) enum Progress<St: Store, X> {
    Pass,
    Reject(Rejection),
    Wait(Waiting<St, X>),
}

impl<St: Store, X: Send + Sync + 'static> Driver<St, X> {
    /// Decides a request. It waits in the queue only if it has an arrival. All its waits together
    /// take at most `patience`, except for the store.
    #[inline(always)]
    pub(crate) fn decide(
        self: &Arc<Self>,
        decided: &mut Decided,
        timer: DecisionTimer,
        arrival: Option<Arrival>,
        patience: Micros,
    ) -> Progress<St, X> {
        let is_blocked =
            self.limits.has_overrides() && self.limits.apply_overrides(decided.charges.iter_mut());
        if arrival.is_some() || is_blocked {
            return self.queue(decided, timer, arrival, patience);
        }
        if let Some(conclusion) = decided.charges.decide_now(&self.limits, &self.store) {
            return self.end(decided, &timer, conclusion, patience);
        }
        let reply = match self.ask(Question::Charge, &decided.charges).now() {
            Ok(reply) => reply,
            Err(reply) => return self.wait_for(decided, timer, reply, patience),
        };
        let conclusion = decided.charges.conclude(&self.limits, reply);
        self.end(decided, &timer, conclusion, patience)
    }

    /// Decides a request that may wait in the queue, or that an operator has blocked.
    #[inline(never)]
    fn queue(
        self: &Arc<Self>,
        decided: &mut Decided,
        mut timer: DecisionTimer,
        arrival: Option<Arrival>,
        patience: Micros,
    ) -> Progress<St, X> {
        let charges = mem::take(&mut decided.charges);
        let (mut request, asking) = Request::within(&self.limits, charges, arrival, patience);
        // The request's clock starts when it first waits.
        let conclusion = match self.advance(&mut request, Step::Ask(asking), || Timestamp::EPOCH) {
            Ok(conclusion) => conclusion,
            Err(next) => {
                return Progress::Wait(waiting::for_step(self, request, timer, next, patience));
            }
        };
        timer.has_waited = request.has_queued();
        decided.charges = request.take_charges();
        self.end(decided, &timer, conclusion, patience)
    }

    #[inline(always)]
    fn end(
        self: &Arc<Self>,
        decided: &mut Decided,
        timer: &DecisionTimer,
        conclusion: Conclusion,
        patience: Micros,
    ) -> Progress<St, X> {
        match self.conclude(decided, timer, conclusion, patience) {
            Ok(Micros::ZERO) => Progress::Pass,
            Ok(delay) => Progress::Wait(waiting::for_turn(self, decided, delay)),
            Err(rejection) => Progress::Reject(rejection),
        }
    }

    /// Waits for the store's reply to a request that does not wait in the queue.
    #[cold]
    fn wait_for(
        self: &Arc<Self>,
        decided: &mut Decided,
        timer: DecisionTimer,
        reply: St::Future,
        patience: Micros,
    ) -> Progress<St, X> {
        let charges = mem::take(&mut decided.charges);
        // The first step is the question that was already asked.
        let (request, asking) = Request::start(&self.limits, charges, None);
        let next = Next::Reply(asking, reply);
        Progress::Wait(waiting::for_step(self, request, timer, next, patience))
    }
}
