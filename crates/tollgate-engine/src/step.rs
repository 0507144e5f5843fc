//! What the program that drives a request does next.

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Micros, StoreError, Timestamp};

use crate::applied::AppliedLimit;
use crate::limit::Limits;

/// What to do next for a request.
#[derive(Debug)]
#[must_use = "a request waits for its next step"]
pub enum Step {
    /// Ask the store, and call [`on_reply`](crate::Request::on_reply) with its reply.
    Ask(Question),
    /// Sleep until this time or until the request [is woken](crate::Request::is_woken). Then call
    /// [`on_wake`](crate::Request::on_wake).
    Sleep(Timestamp),
    /// The request is decided.
    Done(Conclusion),
}

/// The final decision on a request.
#[derive(Debug)]
pub enum Conclusion {
    /// The request passes after this delay, which is zero unless a leaky bucket schedules it.
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
    /// Returns the charges for the store.
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
        applied.iter().map(|applied| present(limits.charge(applied))).collect()
    }
}
