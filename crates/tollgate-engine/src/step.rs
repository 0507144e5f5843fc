//! What the program that drives a request does next.

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Micros, StoreError, Verdict};

use crate::applied::AppliedLimit;
use crate::limit::{Limits, Mode};
use crate::request::{Asking, Sleeping};

/// What to do next for a request.
#[derive(Debug)]
#[must_use = "a request waits for its next step"]
pub enum Step {
    /// Ask the store, and call [`on_reply`](crate::Request::on_reply) with its reply.
    Ask(Asking),
    /// Sleep until [this time](Sleeping::until) or until the request [is woken](Sleeping::is_woken). Then call
    /// [`on_wake`](crate::Request::on_wake).
    Sleep(Sleeping),
    /// The request is decided.
    Done(Conclusion),
}

/// The final decision on a request.
#[derive(Debug)]
pub enum Conclusion {
    /// The request passes after this delay, which is zero unless it queues in the store.
    Pass(Micros),
    /// The store could not decide, and all limits let the request pass. It has no decisions.
    FailOpen(StoreError),
    /// The request is rejected.
    Reject(Rejection),
}

/// Why a request is rejected.
#[derive(Debug)]
pub enum Rejection {
    /// A limit denies the request, and the request may not wait for it.
    Denied,
    /// The request would have to wait for longer than it may.
    TooLate,
    /// Too many requests wait, or too many with the same key.
    QueueFull,
    /// The store could not decide, and a policy fails closed.
    Undecided(StoreError),
}

/// How to present the charges to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Charge the request.
    Charge,
    /// Only learn the decisions ([`Charge::dry`]).
    Dry,
    /// Only learn the remaining units: the same charges with cost 0.
    Peek,
}

impl Question {
    /// Returns the charges for the store. Shadow limits are only asked to charge: a local fallback
    /// that decides only for them would hide the failure of the others.
    pub fn charges<'a>(
        self,
        limits: &'a Limits,
        applied: &'a [AppliedLimit],
    ) -> SmallVec<[Charge<'a>; 4]> {
        let present = |charge: Charge<'a>| match self {
            Self::Charge => charge,
            Self::Dry => charge.dry(),
            Self::Peek => Charge { cost: Cost::ZERO, ..charge },
        };
        let asked = applied.iter().filter(|applied| self.asks(limits, applied));
        asked.map(|applied| present(limits.charge(applied))).collect()
    }

    fn asks(self, limits: &Limits, applied: &AppliedLimit) -> bool {
        self == Self::Charge || limits.of(applied).mode != Mode::Shadow
    }

    /// Returns the reply with the former decisions of limits that were not asked.
    pub(crate) fn complete(
        self,
        limits: &Limits,
        applied: &[AppliedLimit],
        reply: &Verdict,
    ) -> Verdict {
        let mut decided = reply.decisions().iter().copied();
        let decisions = applied.iter().map(|applied| {
            let reply = if self.asks(limits, applied) { decided.next() } else { None };
            reply.unwrap_or(applied.decision)
        });
        let verdict = Verdict::new(reply.is_admitted(), reply.decided_at(), decisions);
        verdict.with_source(reply.source())
    }
}
