//! What would happen to a request now, without a charge.

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Decision, Micros, Outcome, Verdict};

use crate::applied::AppliedLimit;
use crate::charges::Charges;
use crate::conclusion::Conclusion;
use crate::limit::Limits;
use crate::queue::Queue;
use crate::request::Request;
use crate::step::Step;

/// What would happen to a request if no other request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// It passes after this delay, which is zero unless a policy queues it.
    Pass(Micros),
    /// It waits until its limits allow it, for up to this time.
    Wait(Micros),
    /// It is rejected.
    Reject,
}

impl Forecast {
    /// Returns the question to the store about a charge: it is [dry](Charge::dry), and if the
    /// request would queue, the reply is a denial that contains the delay.
    pub fn question<'a>(limits: &'a Limits, applied: &'a AppliedLimit) -> Charge<'a> {
        let charge = limits.charge(applied);
        Charge { queue: charge.queue.and(Some(Micros::ZERO)), ..charge }.dry()
    }

    /// Decides a request without charging it. `dry` is the store's reply to the
    /// [question](Self::question) about each charge.
    pub fn new(limits: &Limits, charges: Charges, dry: &Verdict) -> Self {
        if limits.are_blocked(&charges) {
            return Self::Reject;
        }
        let enforces = |applied: &AppliedLimit| limits.of(applied).mode.enforces();
        let queue = |applied: &AppliedLimit| limits.charge(applied).queue;
        let decided = || charges.iter().zip(dry.decisions());
        let queued = decided().filter(|(applied, _)| enforces(applied) && queue(applied).is_some());
        // The request leaves the store's queue when all of its policies allow it.
        let delay = queued.filter_map(|(_, decision)| decision.retry_after()).max();
        let delay = delay.unwrap_or_default();
        let decisions = decided().map(|(applied, decision)| {
            let drains = limits.policy(applied).is_leaky_queue() && applied.cost > Cost::ZERO;
            let delay = match (decision.outcome, queue(applied)) {
                (Outcome::WouldAllow, None) if drains => decision.reset_after,
                (Outcome::WouldAllow, None) => Micros::ZERO,
                (Outcome::WouldAllow | Outcome::Deny { .. }, Some(queue)) => {
                    let retry_after = Micros::new(delay.get().saturating_sub(queue.get()));
                    if retry_after > Micros::ZERO {
                        return Decision { outcome: Outcome::Deny { retry_after }, ..*decision };
                    }
                    delay
                }
                _ => return *decision,
            };
            let outcome = Outcome::Allow { delay, charged_at: dry.decided_at(), refunded: 0 };
            Decision { outcome, ..*decision }
        });
        let decisions: SmallVec<[Decision; 4]> = decisions.collect();
        let mut decided = charges.iter().zip(&decisions);
        let is_denied = decided.any(|(applied, decision)| enforces(applied) && decision.denies());
        let reply = Verdict::new(!is_denied, dry.decided_at(), decisions);
        let queue = Queue::new();
        let arrival = limits.may_wait().then(|| queue.arrive(0));
        let (mut request, asking) = Request::start(limits, charges, arrival);
        match request.on_reply(asking, limits, Ok(reply), dry.decided_at()) {
            Step::Done(Conclusion::Pass(delay)) => Self::Pass(delay),
            Step::Done(Conclusion::FailOpen(_)) => Self::Pass(Micros::ZERO),
            Step::Done(Conclusion::Reject(_)) => Self::Reject,
            Step::Sleep(_) | Step::Ask(_) => Self::Wait(request.max_wait(limits)),
        }
    }
}
