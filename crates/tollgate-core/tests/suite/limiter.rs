//! A key under a policy with any algorithm, for use by the tests.

use std::any::Any;

use tollgate_core::algorithm::Rule;
use tollgate_core::{Charged, Cost, Decision, Outcome, Policy, Receipt, Timestamp, with_rule};

/// A rule and a key's state. Rules have different state types, so the tests use a trait object.
pub(crate) trait Limiter {
    /// Decides without changing state.
    fn assess(&self, now: u64, cost: u64) -> Decision;

    /// Charges a cost that [`assess`](Limiter::assess) has allowed.
    fn charge(&mut self, now: u64, cost: u64);

    fn give_back(&mut self, charged: &Charged, units: u64, now: u64) -> u64;

    fn owe(&mut self, units: u64, now: u64) -> u64;

    fn consumed(&self, now: u64) -> u64;

    fn counts_from(&self) -> u64;

    fn is_fresh(&self, now: u64) -> bool;

    /// The same key converted to another policy at `now`. A store may have dropped a fresh key.
    fn converted(&self, to: &Policy, now: u64) -> Box<dyn Limiter>;

    /// The exact state, in a form that can be compared.
    fn state(&self) -> String;

    fn copy(&self) -> Box<dyn Limiter>;

    /// Decides on one charge and records it like a store. A denied charge or a cost of zero writes
    /// no state.
    fn request(&mut self, now: u64, cost: u64) -> Decision {
        let decision = self.assess(now, cost);
        if cost > 0 && decision.allows() {
            self.charge(now, cost);
        }
        decision
    }

    fn peek(&self, now: u64) -> Decision {
        self.assess(now, 0)
    }
}

/// An unused key under `policy`.
pub(crate) fn limiter(policy: &Policy) -> Box<dyn Limiter> {
    with_rule!(policy.rule(), rule => boxed(rule.clone(), rule.fresh()))
}

/// A key for which `units` count at `now` under `policy`.
pub(crate) fn resumed(policy: &Policy, units: u64, now: u64) -> Box<dyn Limiter> {
    with_rule!(policy.rule(), rule => boxed(rule.clone(), rule.resume(units, instant(now))))
}

/// The receipt that a store would issue for a charge that this decision allowed.
pub(crate) fn receipt(decision: &Decision, now: u64, cost: u64) -> Option<Charged> {
    match decision.outcome {
        Outcome::Allow { delay, charged_at, refunded } if cost > 0 => Some(Charged {
            cost: Cost::new(cost),
            charged_at,
            leaves_at: instant(now) + delay,
            resets_at: instant(now) + decision.reset_after,
            refunded,
            lifetime: Receipt::LIFETIME,
        }),
        _ => None,
    }
}

/// The decision without a bucket's count of refunded units.
pub(crate) fn without_refunds(decision: Decision) -> Decision {
    let outcome = match decision.outcome {
        Outcome::Allow { delay, charged_at, .. } => {
            Outcome::Allow { delay, charged_at, refunded: 0 }
        }
        outcome => outcome,
    };
    Decision { outcome, ..decision }
}

pub(crate) fn instant(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

struct RuleState<R: Rule> {
    rule: R,
    state: R::State,
}

fn boxed<R: Rule>(rule: R, state: R::State) -> Box<dyn Limiter> {
    Box::new(RuleState { rule, state })
}

impl<R: Rule> Limiter for RuleState<R> {
    fn assess(&self, now: u64, cost: u64) -> Decision {
        let now = instant(now);
        let view = self.rule.refresh(&self.state, now);
        self.rule.assess(view, now, Cost::new(cost))
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.rule.charge(&mut self.state, instant(now), Cost::new(cost));
    }

    fn give_back(&mut self, charged: &Charged, units: u64, now: u64) -> u64 {
        self.rule.give_back(&mut self.state, charged, units, instant(now))
    }

    fn owe(&mut self, units: u64, now: u64) -> u64 {
        self.rule.owe(&mut self.state, units, instant(now))
    }

    fn consumed(&self, now: u64) -> u64 {
        self.rule.consumed(&self.state, instant(now))
    }

    fn counts_from(&self) -> u64 {
        self.rule.counts_from(&self.state).as_micros()
    }

    fn is_fresh(&self, now: u64) -> bool {
        self.rule.is_fresh(&self.state, instant(now))
    }

    /// Rules with the same algorithm can convert the state. Between different algorithms, only the
    /// consumed units carry over.
    fn converted(&self, to: &Policy, now: u64) -> Box<dyn Limiter> {
        if self.is_fresh(now) {
            return limiter(to);
        }
        with_rule!(to.rule(), rule => {
            if let Some(to) = (rule as &dyn Any).downcast_ref::<R>() {
                boxed(to.clone(), to.convert(&self.rule, &self.state))
            } else {
                let at = self.rule.counts_from(&self.state);
                boxed(rule.clone(), rule.resume(self.rule.consumed(&self.state, at), at))
            }
        })
    }

    fn state(&self) -> String {
        format!("{:?}", self.state)
    }

    fn copy(&self) -> Box<dyn Limiter> {
        boxed(self.rule.clone(), self.state.clone())
    }
}
