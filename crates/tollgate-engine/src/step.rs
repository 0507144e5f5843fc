//! What the program that drives a request does next.

use std::task::Waker;

use tollgate_core::Timestamp;

use crate::conclusion::Conclusion;
use crate::corrections::Refunds;
use crate::question::Question;
use crate::queue::{Arrival, KeySet, Ticket};

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

/// A question to the store. [`Request::on_reply`](crate::Request::on_reply) takes it with the reply, so each question has one
/// reply.
#[derive(Debug)]
pub struct Asking {
    /// How to present the charges to the store.
    pub question: Question,
    pub(crate) asked: Asked,
}

/// A sleep in the queue. [`Request::on_wake`](crate::Request::on_wake) takes it, so only a sleeping request wakes.
#[derive(Debug)]
pub struct Sleeping {
    /// When the request continues at the latest.
    pub until: Timestamp,
    pub(crate) queued: Box<Queued>,
}

#[derive(Debug)]
pub(crate) enum Asked {
    /// To charge. A request that may wait has its arrival.
    First(Option<Arrival>),
    /// For the decisions, because earlier requests wait for its keys.
    Entered(Box<Queued>),
    /// To charge. No earlier request waits for its keys.
    Retried(Box<Queued>),
    /// For the numbers of its rejection.
    Leaving(Leaving),
    /// To charge for the last time.
    Last,
    /// For the numbers of its rejection, because an operator has blocked it.
    Blocked,
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) ticket: Ticket,
    /// When the request gives up.
    pub(crate) until: Timestamp,
    pub(crate) denied: RetryTimes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// The keys that it waited for, or would have to wait for.
    pub(crate) keys: KeySet,
    pub(crate) is_full: bool,
}

/// When each denied charge may be allowed. There is one entry per charge.
#[derive(Debug, Default)]
pub(crate) struct RetryTimes(pub(crate) Box<[Option<Timestamp>]>);

impl RetryTimes {
    pub(crate) fn keys_after(&self, now: Option<Timestamp>) -> KeySet {
        (0..self.0.len()).filter(|number| self.0[*number] > now).collect()
    }

    pub(crate) fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        self.0.iter().flatten().filter(|until| **until > now).min().copied()
    }
}

impl Asking {
    pub(crate) const fn new(question: Question, asked: Asked) -> Self {
        Self { question, asked }
    }

    /// Returns whether the request is in the queue.
    pub const fn is_queued(&self) -> bool {
        matches!(self.asked, Asked::Entered(_) | Asked::Retried(_))
    }

    /// Returns what to refund if the caller leaves before the reply. `first` applies to the first
    /// question, which may have had its effect although the caller leaves.
    pub const fn refunds(&self, first: Refunds) -> Refunds {
        match self.asked {
            Asked::First(_) => first,
            Asked::Retried(_) | Asked::Last => Refunds::All,
            Asked::Entered(_) | Asked::Leaving(_) | Asked::Blocked => Refunds::None,
        }
    }
}

impl Sleeping {
    /// Returns whether the request must continue now, because no earlier request waits for one of
    /// its keys any more. Otherwise `waker` is called when this happens.
    pub fn is_woken(&self, waker: &Waker) -> bool {
        self.queued.ticket.is_woken(waker)
    }
}
