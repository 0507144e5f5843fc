//! One request on its way, and the place where its answer is picked up.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{
    Cost, Granted, Micros, Policy, Receipt, Settlement, StoreError, Timestamp, Verdict,
};

use crate::clock::Moment;
use crate::encode::{Ask, Spent};
use crate::failure::STORE;
use crate::names::Name;

/// The operation in Redis.
#[derive(Debug)]
pub(crate) enum Request {
    Decide(SmallVec<[Line; 2]>),
    Settle {
        state: Name,
        settled: Name,
        receipt: Receipt,
        actual: Cost,
        /// How long the receipt can be settled, and that it was is remembered.
        lifetime: Micros,
    },
    Renew {
        state: Name,
        settled: Name,
        receipt: Receipt,
    },
    Reset {
        state: Name,
    },
    /// Settles blocks and asks for another.
    Lease {
        state: Name,
        policy: Policy,
        spent: SmallVec<[Spent; 2]>,
        ask: Ask,
    },
}

impl Request {
    /// Whether both name the same keys, so that they are on the same nodes while a slot of
    /// a Cluster moves.
    pub(crate) fn shares_keys_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Decide(lines), Self::Decide(others)) => {
                lines.iter().map(|line| &line.state).eq(others.iter().map(|line| &line.state))
            }
            (Self::Reset { state }, Self::Reset { state: other })
            | (Self::Lease { state, .. }, Self::Lease { state: other, .. }) => state == other,
            // No two receipts have the same key.
            _ => false,
        }
    }

    /// The most keys that this adds to a call.
    pub(crate) fn keys(&self) -> usize {
        match self {
            Self::Decide(lines) => lines.len(),
            Self::Settle { .. } | Self::Renew { .. } => 2,
            Self::Reset { .. } | Self::Lease { .. } => 1,
        }
    }
}

/// One charge.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) state: Name,
    pub(crate) policy: Policy,
    pub(crate) cost: Cost,
    pub(crate) enforce: bool,
    pub(crate) dry: bool,
}

/// The answer of Redis.
#[derive(Debug)]
pub(crate) enum CallAnswer {
    Verdict(Verdict),
    Settlement(Settlement),
    Renewal(Option<Receipt>),
    Reset,
    Leased(Leased),
}

/// The answer of Redis to a request for a block, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    pub(crate) granted: Granted,
    /// Redis' time of the call.
    pub(crate) decided_at: Timestamp,
    /// Before the call was sent: a block that counts its time from here ends in time.
    pub(crate) sent: Moment,
}

/// A request, shared by who asked and by who carries it to Redis.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: Request,
    /// The slot of its keys.
    pub(crate) slot: u16,
    /// The epoch of the deny cache when the request was made.
    pub(crate) epoch: u64,
    /// The caller gives up after this instant.
    pub(crate) deadline: Instant,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    /// Waits to be sent, a second time perhaps.
    Queued {
        waker: Option<Waker>,
        refusals: u8,
    },
    /// Is part of a call.
    Sent {
        waker: Option<Waker>,
        refusals: u8,
    },
    Answered(Result<CallAnswer, StoreError>),
    /// The answer was picked up, or who asked has left.
    Over,
}

impl Ticket {
    pub(crate) fn new(request: Request, slot: u16, epoch: u64, deadline: Instant) -> Self {
        let progress = Mutex::new(Progress::Queued { waker: None, refusals: 0 });
        Self { request, slot, epoch, deadline, progress }
    }

    /// The slot, if its requests need a script of their own. Those to decide share one for several
    /// slots, where the node allows that.
    pub(crate) fn script(&self, allows_cross_slot: bool) -> Option<u16> {
        let shares = allows_cross_slot && matches!(self.request, Request::Decide(_));
        (!shares).then_some(self.slot)
    }

    /// Whether a caller waits for the answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        !matches!(*self.progress.lock(), Progress::Answered(_) | Progress::Over)
    }

    /// Takes this into a call; `false` if the caller has given up.
    pub(crate) fn send(&self) -> bool {
        let mut progress = self.progress.lock();
        match &mut *progress {
            Progress::Queued { waker, refusals } => {
                *progress = Progress::Sent { waker: waker.take(), refusals: *refusals };
                true
            }
            Progress::Sent { .. } => true,
            Progress::Answered(_) | Progress::Over => false,
        }
    }

    /// Allows another call for this request, because Redis did not execute it for a deadline,
    /// although it was in time by the clock of this process. Returns `false` if that has happened
    /// [too often](MOST_REFUSALS).
    pub(crate) fn take_back(&self) -> bool {
        let mut progress = self.progress.lock();
        match &mut *progress {
            Progress::Sent { waker, refusals } if *refusals < MOST_REFUSALS => {
                *progress = Progress::Queued { waker: waker.take(), refusals: *refusals + 1 };
                true
            }
            _ => false,
        }
    }

    /// Takes this back from a call that another node will carry out; `false` if the caller has
    /// given up.
    pub(crate) fn unsend(&self) -> bool {
        let mut progress = self.progress.lock();
        match &mut *progress {
            Progress::Sent { waker, refusals } => {
                *progress = Progress::Queued { waker: waker.take(), refusals: *refusals };
                true
            }
            Progress::Queued { .. } => true,
            Progress::Answered(_) | Progress::Over => false,
        }
    }

    pub(crate) fn answer(&self, answer: Result<CallAnswer, StoreError>) {
        self.answer_with(|_| answer);
    }

    /// Answers that time is up. Returns whether the request was shed: it waited to be sent.
    pub(crate) fn expire(&self) -> bool {
        let mut is_shed = false;
        self.answer_with(|is_sent| {
            is_shed = !is_sent;
            Err(if is_sent {
                StoreError::maybe_charged(STORE, "no answer in time")
            } else {
                StoreError::overloaded(STORE, "no answer could come in time")
            })
        });
        is_shed
    }

    /// Answers that no task is left to carry this out.
    pub(crate) fn fail_pending(&self) {
        self.answer_with(|is_sent| {
            Err(if is_sent {
                StoreError::maybe_charged(STORE, RUNTIME_GONE)
            } else {
                StoreError::not_charged(STORE, RUNTIME_GONE)
            })
        });
    }

    /// Answers, unless that is over, by whether this is part of a call.
    fn answer_with(&self, answer: impl FnOnce(bool) -> Result<CallAnswer, StoreError>) {
        let mut progress = self.progress.lock();
        let (is_sent, waker) = match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Queued { waker, .. } => (false, waker),
            Progress::Sent { waker, .. } => (true, waker),
            before => {
                *progress = before;
                return;
            }
        };
        *progress = Progress::Answered(answer(is_sent));
        drop(progress);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Who asked has left.
    pub(crate) fn abandon(&self) {
        *self.progress.lock() = Progress::Over;
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<CallAnswer, StoreError>> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Answered(answer) => Poll::Ready(answer),
            Progress::Over => {
                Poll::Ready(Err(StoreError::invalid(STORE, "polled after completion")))
            }
            Progress::Queued { waker, refusals } => {
                *progress = Progress::Queued { waker: Some(register(waker, cx)), refusals };
                Poll::Pending
            }
            Progress::Sent { waker, refusals } => {
                *progress = Progress::Sent { waker: Some(register(waker, cx)), refusals };
                Poll::Pending
            }
        }
    }
}

fn register(waker: Option<Waker>, cx: &Context<'_>) -> Waker {
    waker.filter(|waker| waker.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone())
}

/// A call has the deadline of its oldest request, so each of several old requests can cause a refusal
/// of all. A server that refuses again and again has another reason.
const MOST_REFUSALS: u8 = 3;

const RUNTIME_GONE: &str = "the tokio runtime that the store was made in has stopped";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ticket() -> Ticket {
        let request = Request::Reset { state: Name::new() };
        Ticket::new(request, 0, 0, Instant::now() + Duration::from_secs(1))
    }

    fn poll(ticket: &Ticket) -> Poll<Result<CallAnswer, StoreError>> {
        ticket.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_is_picked_up_once() {
        let ticket = ticket();
        assert!(poll(&ticket).is_pending());
        assert!(ticket.send());
        assert!(poll(&ticket).is_pending());
        ticket.answer(Ok(CallAnswer::Reset));
        assert!(matches!(poll(&ticket), Poll::Ready(Ok(CallAnswer::Reset))));
        assert!(matches!(poll(&ticket), Poll::Ready(Err(_))));
    }

    #[test]
    fn the_first_answer_counts() {
        let ticket = ticket();
        ticket.expire();
        ticket.answer(Ok(CallAnswer::Reset));
        assert!(matches!(poll(&ticket), Poll::Ready(Err(_))));
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        let left = ticket();
        left.abandon();
        assert!(!left.send());
        let late = ticket();
        late.expire();
        assert!(!late.send());
    }

    #[test]
    fn time_that_ran_out_before_sending_surely_charged_nothing() {
        let (queued, sent) = (ticket(), ticket());
        assert!(sent.send());
        for (ticket, may_have_charged) in [(queued, false), (sent, true)] {
            ticket.expire();
            let Poll::Ready(Err(error)) = poll(&ticket) else { panic!("{ticket:?}") };
            assert_eq!(error.may_have_charged(), may_have_charged);
        }
    }

    #[test]
    fn what_another_node_is_to_carry_out_has_not_been_sent() {
        let ticket = ticket();
        assert!(ticket.send());
        assert!(ticket.unsend());
        ticket.expire();
        assert!(!ticket.unsend());
        let Poll::Ready(Err(error)) = poll(&ticket) else { panic!("{ticket:?}") };
        assert!(!error.may_have_charged());
    }

    #[test]
    fn a_request_is_not_taken_back_forever() {
        let ticket = ticket();
        assert!(!ticket.take_back());
        for _ in 0..MOST_REFUSALS {
            assert!(ticket.send());
            assert!(ticket.take_back());
        }
        assert!(ticket.send());
        assert!(!ticket.take_back());
    }
}
