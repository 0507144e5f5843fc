//! Forecasts of requests, each before it is charged.

use tollgate_core::{Decision, Outcome, Store as _};
use tollgate_engine::{AppliedLimit, Conclusion, Forecast, Limits, Queue, Request, Step};
use tollgate_memory::{ManualClock, MemoryStore};

use crate::case::{Case, instant};

impl Case {
    /// Compares the forecast of each request, and its numbers, with its first steps when it is
    /// charged, if no other request waits. Returns the first forecast.
    pub(crate) fn forecast(&self) -> Forecast {
        let clock = ManualClock::default();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let rules = self.rules();
        let forecast = |(number, at): (usize, u64)| {
            clock.set(instant(at));
            let (limits, (charges, _)) = (&rules[number], self.charges(number, &rules[number]));
            let dry = charges.iter().map(|applied| Forecast::question(limits, applied));
            let dry: Vec<_> = dry.collect();
            let dry = store.decide(&dry).into_inner().unwrap();
            let forecast = Forecast::new(limits, charges.clone(), &dry);
            let arrival = limits.may_wait().then(|| Queue::new().arrive(0));
            let (mut request, asking) = Request::start(limits, charges, arrival);
            let mut step = Step::Ask(asking);
            while let Step::Ask(asking) = step {
                let reply = store.decide(&asking.question.charges(limits, request.charges()));
                step = request.on_reply(asking, limits, reply.into_inner(), instant(at));
            }
            let agrees = match (forecast, &step) {
                (Forecast::Pass(one), Step::Done(Conclusion::Pass(other))) => one == *other,
                (Forecast::Wait(_), Step::Sleep(_)) => true,
                (Forecast::Reject, Step::Done(Conclusion::Reject(_))) => true,
                _ => false,
            };
            assert!(agrees, "request {number}: {forecast:?}, {step:?}");
            if let Step::Done(_) = step {
                for (applied, dry) in request.charges().iter().zip(dry.decisions()) {
                    assert!(is_foretold(limits, applied, *dry), "{number}: {dry:?}, {applied:?}");
                }
            }
            forecast
        };
        let forecasts: Vec<_> = self.arrivals().into_iter().enumerate().map(forecast).collect();
        forecasts[0]
    }
}

/// Whether a dry charge has the numbers that the charge has, apart from the units that it takes.
fn is_foretold(limits: &Limits, applied: &AppliedLimit, dry: Decision) -> bool {
    let (policy, decision) = (limits.policy(applied), applied.decision);
    match decision.outcome {
        // The numbers are those at the end of the delay, which is the longest of all policies.
        outcome if limits.charge(applied).queue.is_some() => {
            let delay = dry.retry_after().unwrap_or_default();
            !matches!(outcome, Outcome::Allow { .. }) || decision.delay() >= delay
        }
        // A denial may have been a strike.
        Outcome::Deny { .. } | Outcome::WouldAllow if policy.counts_denials() => {
            decision.limit == dry.limit && decision.remaining <= dry.remaining
        }
        Outcome::Allow { .. } => {
            let units = if policy.is_penalty() { 0 } else { applied.cost.get() };
            dry.outcome == Outcome::WouldAllow
                && (decision.limit, decision.remaining + units) == (dry.limit, dry.remaining)
        }
        _ => decision == dry,
    }
}
