//! The third step of a request: one call of the store, or the wait queue in front of it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tollgate_core::{Charge, Store, Verdict};

use super::action::{Action, Answer, DecisionFuture, RequestContext, Waiting};
use super::cancel::CancelGuard;
use super::state::LayerState;
use super::wait_queue::WaitQueue;
use crate::RequestHead;

impl<St: Store> LayerState<St> {
    #[inline]
    pub(super) fn admit(&self, head: &RequestHead<'_>) -> Action<St> {
        let mut context = RequestContext::default();
        if let Err(response) = self.classify(head, &mut context) {
            return Action::Respond(response);
        }
        if context.resolved.is_empty() {
            return Action::Forward(Default::default());
        }
        match self.decide(head, &mut context) {
            Ok(answer) => self.conclude(answer, &mut context, head),
            Err(answer) => Action::Wait(Box::new(Waiting::Decision { answer, context })),
        }
    }

    #[inline(always)]
    fn decide(
        &self,
        head: &RequestHead<'_>,
        context: &mut RequestContext,
    ) -> Result<Answer, DecisionFuture> {
        self.telemetry.start(&mut context.timer, &self.limits, &context.resolved, head);
        if let Some(queue) = &self.wait_queue
            && let Some(answer) = self.join(queue, head, context)
        {
            return Err(answer);
        }
        let ask = |charges: &[Charge<'_>]| {
            self.store.decide_at_once(charges).ok_or_else(|| self.store.decide(charges))
        };
        let answer = match &*context.resolved {
            // Most layers have one limit: its charge needs no list.
            [it] => ask(&[self.limits[it.limit].charge(&it.subject.key, it.cost, context.tier)]),
            _ => ask(&context.charges(&self.limits)),
        };
        answer.or_else(|later| self.poll_once(later, context))
    }

    /// A store that waits for nothing has answered by now. The request then goes on without being
    /// moved into a future.
    fn poll_once(
        &self,
        mut answer: St::Future<Verdict>,
        context: &RequestContext,
    ) -> Result<Answer, DecisionFuture> {
        match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending if self.leases.is_some() => {
                // Clients that leave early would otherwise fill a concurrency limit.
                let charges = context.owned_charges(&self.limits);
                let returns = |policy: &tollgate_core::Policy| policy.is_concurrency();
                Err(Box::pin(CancelGuard::asking(&self.store, charges, answer, returns)))
            }
            Poll::Pending => Err(Box::pin(answer)),
        }
    }

    /// Gives a request its number in the order of arrival, and lets it wait if earlier requests
    /// wait for one of its keys.
    fn join(
        &self,
        queue: &WaitQueue,
        head: &RequestHead<'_>,
        context: &mut RequestContext,
    ) -> Option<DecisionFuture> {
        let (arrival, others_wait) = queue.arrive();
        context.arrival = arrival;
        if !others_wait {
            return None;
        }
        let waiter = self.waiter(context).filter(|waiter| !waiter.never_passes())?;
        let answer: DecisionFuture = match waiter.enter(queue, arrival, queue.bytes_of(head), 0) {
            Ok(None) => return None,
            Ok(Some(ticket)) => {
                let first = context.resolved[waiter.first()].limit;
                let timer = self.telemetry.start_waiting(first);
                Box::pin(waiter.wait(ticket, None, timer))
            }
            Err(keys) => Box::pin(waiter.reject(keys)),
        };
        context.timer.has_waited = true;
        Some(answer)
    }

    pub(super) fn wait(
        &self,
        queue: &WaitQueue,
        answer: &Answer,
        context: &mut RequestContext,
        head: &RequestHead<'_>,
    ) -> Option<DecisionFuture> {
        let denial = answer.as_ref().ok().filter(|verdict| !verdict.is_admitted())?;
        // A denial after a wait is final.
        let waiter = self.waiter(context).filter(|_| !context.timer.has_waited)?;
        let denied = waiter.denied(denial)?;
        let bytes = queue.bytes_of(head);
        let ticket = waiter.enter(queue, context.arrival, bytes, denied.keys()).ok()??;
        let timer = self.telemetry.start_waiting(context.resolved[waiter.first()].limit);
        context.timer.has_waited = true;
        Some(Box::pin(waiter.wait(ticket, Some((denial.clone(), denied)), timer)))
    }
}
