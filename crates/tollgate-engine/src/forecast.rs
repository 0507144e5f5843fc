//! What would happen to a request now, without a charge.

use tollgate_core::{Cost, Decision, Micros, Outcome, Verdict};

use crate::charges::Charges;
use crate::limit::Limits;
use crate::queue::Queue;
use crate::request::Request;
use crate::step::{Conclusion, Step};

/// What would happen to a request if no other request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// It passes after this delay, which is zero unless a leaky bucket schedules it.
    Pass(Micros),
    /// It waits until its limits allow it, for up to this time.
    Wait(Micros),
    /// It is rejected.
    Reject,
}

impl Forecast {
    /// Decides a request without charging it. `dry` is the store's reply to the same charges, each
    /// of them [dry](tollgate_core::Charge::dry).
    pub fn new(limits: &Limits, charges: Charges, dry: &Verdict) -> Self {
        let decided = || charges.iter().zip(dry.decisions());
        let mut enforced = decided().filter(|(applied, _)| limits.of(applied).mode.enforces());
        let is_denied = enforced.any(|(_, decision)| decision.denies());
        let decisions = decided().map(|(applied, decision)| match decision.outcome {
            Outcome::WouldAllow if !is_denied => {
                // The request would leave when the work before it has drained.
                let queues = limits.policy(applied).queues() && applied.cost > Cost::ZERO;
                let delay = if queues { decision.reset_after } else { Micros::ZERO };
                let outcome = Outcome::Allow { delay, charged_at: dry.decided_at(), refunded: 0 };
                Decision { outcome, ..*decision }
            }
            _ => *decision,
        });
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
