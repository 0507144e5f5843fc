//! A request on its way to Redis, and its answer.

use std::mem;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{
    Charge, Cost, Granted, Micros, OwnedCharge, PenaltyBlock, Policy, Receipt, Settlement,
    StoreError, Timestamp, Verdict,
};

use crate::calls::failure::STORE;
use crate::clock::Moment;
use crate::script::encode::{Ask, Spent};
use crate::script::names::Name;
use crate::sync::Mutex;

/// An operation in Redis.
#[derive(Debug)]
pub(crate) enum Request {
    Decide(SmallVec<[NamedCharge; 2]>),
    Settle {
        state: Name,
        settled: Name,
        receipt: Receipt,
        actual: Cost,
    },
    Renew {
        state: Name,
        settled: Name,
        receipt: Receipt,
    },
    Reset {
        state: Name,
        /// For the deny cache.
        hash: u64,
    },
    Block {
        state: Name,
        policy: Policy,
        block: PenaltyBlock,
    },
    /// Settles blocks and requests another block.
    Lease {
        state: Name,
        policy: Policy,
        spent: SmallVec<[Spent; 2]>,
        ask: Ask,
    },
}

impl Request {
    /// Whether both name the same keys, so they are on the same nodes while a Cluster slot moves.
    pub(crate) fn shares_keys_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Decide(charges), Self::Decide(others)) => {
                charges.iter().map(|it| &it.state).eq(others.iter().map(|it| &it.state))
            }
            (Self::Reset { state, .. }, Self::Reset { state: other, .. })
            | (Self::Block { state, .. }, Self::Block { state: other, .. })
            | (Self::Lease { state, .. }, Self::Lease { state: other, .. }) => state == other,
            // Receipts never share a key.
            _ => false,
        }
    }

    /// Returns a state's name. All of a request's states have the same slot.
    pub(crate) fn state(&self) -> Option<&Name> {
        match self {
            Self::Decide(charges) => charges.first().map(|charge| &charge.state),
            Self::Settle { state, .. }
            | Self::Renew { state, .. }
            | Self::Reset { state, .. }
            | Self::Block { state, .. }
            | Self::Lease { state, .. } => Some(state),
        }
    }

    /// Returns the maximum number of keys that this adds to a call.
    pub(crate) fn keys(&self) -> usize {
        match self {
            Self::Decide(charges) => charges.len(),
            Self::Settle { .. } | Self::Renew { .. } => 2,
            Self::Reset { .. } | Self::Block { .. } | Self::Lease { .. } => 1,
        }
    }
}

/// A [`Charge`], and its state's name in Redis.
#[derive(Clone, Debug)]
pub(crate) struct NamedCharge {
    pub(crate) state: Name,
    pub(crate) charge: OwnedCharge,
}

impl NamedCharge {
    pub(crate) fn new(state: Name, charge: &Charge<'_>) -> Self {
        Self { state, charge: charge.into() }
    }

    pub(crate) const fn as_charge(&self) -> Charge<'_> {
        self.charge.as_charge()
    }

    /// Whether the request may leave later because of this charge.
    pub(crate) fn gets_a_place(&self) -> bool {
        self.charge.enforce && self.charge.queue.is_some() && self.charge.cost > Cost::ZERO
    }
}

/// Redis' answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Verdict(Verdict),
    Settlement(Settlement),
    Renewal(Option<Receipt>),
    Reset,
    Blocked(Option<Micros>),
    Leased(Leased),
}

/// Redis' answer to a request for a block, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    pub(crate) granted: Granted,
    /// Redis' time of the call.
    pub(crate) decided_at: Timestamp,
    /// When the call was sent. A block timed from here expires no later than in Redis.
    pub(crate) sent: Moment,
}

/// A request, shared between the caller and the task that sends it to Redis.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: Request,
    /// Its keys' slot.
    pub(crate) slot: u16,
    /// The deny cache's epoch when the request was made.
    pub(crate) epoch: u64,
    /// The caller gives up after this instant.
    pub(crate) deadline: Instant,
    stage: Mutex<Stage>,
}

#[derive(Debug)]
enum Stage {
    Waiting(Waiting),
    Answered(Result<Answer, StoreError>),
    /// The caller has the answer, or gave up.
    Over,
}

/// A request that its caller waits for.
#[derive(Debug, Default)]
struct Waiting {
    waker: Option<Waker>,
    /// Whether it is in a call. If not, it waits to be sent, possibly for a second time.
    is_sent: bool,
    refusals: u8,
}

impl Ticket {
    pub(crate) fn new(request: Request, slot: u16, epoch: u64, deadline: Instant) -> Self {
        let stage = Mutex::new(Stage::Waiting(Waiting::default()));
        Self { request, slot, epoch, deadline, stage }
    }

    /// Discards the request, because the caller gave up.
    pub(crate) fn abandon(&self) {
        *self.stage.lock() = Stage::Over;
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Answer, StoreError>> {
        let mut stage = self.stage.lock();
        match &mut *stage {
            Stage::Waiting(Waiting { waker, .. }) => {
                *waker = Some(register(waker.take(), cx));
                Poll::Pending
            }
            over => match mem::replace(over, Stage::Over) {
                Stage::Answered(answer) => Poll::Ready(answer),
                _ => Poll::Ready(Err(StoreError::invalid(STORE, "polled after completion"))),
            },
        }
    }

    /// Returns the slot if the request needs a separate batch for it. Decisions of several slots
    /// share a batch if the node allows that.
    pub(crate) fn separate_slot(&self, allows_cross_slot: bool) -> Option<u16> {
        let shares = allows_cross_slot && matches!(self.request, Request::Decide(_));
        (!shares).then_some(self.slot)
    }

    /// Whether a caller waits for the answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.while_waiting(|_| true)
    }

    /// Marks this as sent in a call. Returns `false` if the caller has given up.
    pub(crate) fn send(&self) -> bool {
        self.while_waiting(|it| {
            it.is_sent = true;
            true
        })
    }

    /// Requeues this request after Redis rejected the call as late, although this process's clock
    /// was still before the deadline. Returns `false` after [too many rejections](MOST_REFUSALS).
    pub(crate) fn take_back(&self) -> bool {
        self.while_waiting(|it| {
            let is_taken = it.is_sent && it.refusals < MOST_REFUSALS;
            if is_taken {
                (it.is_sent, it.refusals) = (false, it.refusals + 1);
            }
            is_taken
        })
    }

    /// Requeues this request because another node will execute the call. Returns `false` if the
    /// caller has given up.
    pub(crate) fn unsend(&self) -> bool {
        self.while_waiting(|it| {
            it.is_sent = false;
            true
        })
    }

    /// Returns `false` if the caller has the answer or gave up.
    fn while_waiting(&self, change: impl FnOnce(&mut Waiting) -> bool) -> bool {
        match &mut *self.stage.lock() {
            Stage::Waiting(waiting) => change(waiting),
            Stage::Answered(_) | Stage::Over => false,
        }
    }

    pub(crate) fn answer(&self, answer: Result<Answer, StoreError>) {
        self.answer_with(|_| answer);
    }

    /// Fails the request because its deadline has passed. Returns whether it was shed, which means
    /// that it was never sent.
    pub(crate) fn expire(&self) -> bool {
        let mut is_shed = false;
        self.answer_with(|is_sent| {
            is_shed = !is_sent;
            Err(if is_sent {
                StoreError::maybe_charged(STORE, "no answer in time")
            } else {
                StoreError::overloaded(STORE, "an answer would come too late")
            })
        });
        is_shed
    }

    /// Fails the request because the runtime that would send it is gone.
    pub(crate) fn fail_pending(&self) {
        self.answer_with(|is_sent| {
            Err(if is_sent {
                StoreError::maybe_charged(STORE, RUNTIME_GONE)
            } else {
                StoreError::not_charged(STORE, RUNTIME_GONE)
            })
        });
    }

    /// Answers, if the request still waits. `answer` receives whether it is in a call.
    fn answer_with(&self, answer: impl FnOnce(bool) -> Result<Answer, StoreError>) {
        let mut stage = self.stage.lock();
        let Stage::Waiting(waiting) = &mut *stage else { return };
        let (is_sent, waker) = (waiting.is_sent, waiting.waker.take());
        *stage = Stage::Answered(answer(is_sent));
        drop(stage);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn register(waker: Option<Waker>, cx: &Context<'_>) -> Waker {
    waker.filter(|waker| waker.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone())
}

/// A call has the deadline of its oldest request, so several old requests can each cause a
/// rejection of their entire call. If a server rejects a request more often than this, the reason
/// is another.
const MOST_REFUSALS: u8 = 3;

const RUNTIME_GONE: &str = "the tokio runtime that the store was made in has stopped";

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tollgate_interleavings::{explore, thread};

    use super::*;

    fn ticket() -> Ticket {
        let request = Request::Reset { state: Name::new(), hash: 0 };
        Ticket::new(request, 0, 0, Instant::now() + Duration::from_secs(1))
    }

    fn poll(ticket: &Ticket) -> Poll<Result<Answer, StoreError>> {
        ticket.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn answer_is_taken_once() {
        let ticket = ticket();
        assert!(poll(&ticket).is_pending());
        assert!(ticket.send());
        assert!(poll(&ticket).is_pending());
        ticket.answer(Ok(Answer::Reset));
        assert!(matches!(poll(&ticket), Poll::Ready(Ok(Answer::Reset))));
        assert!(matches!(poll(&ticket), Poll::Ready(Err(_))));
    }

    #[test]
    fn first_answer_counts() {
        let ticket = ticket();
        ticket.expire();
        ticket.answer(Ok(Answer::Reset));
        assert!(matches!(poll(&ticket), Poll::Ready(Err(_))));
    }

    #[test]
    fn abandoned_requests_are_not_sent() {
        let left = ticket();
        left.abandon();
        assert!(!left.send());
        let late = ticket();
        late.expire();
        assert!(!late.send());
    }

    #[test]
    fn expiry_before_sending_is_uncharged() {
        let (queued, sent) = (ticket(), ticket());
        assert!(sent.send());
        for (ticket, may_have_charged) in [(queued, false), (sent, true)] {
            ticket.expire();
            let Poll::Ready(Err(error)) = poll(&ticket) else { panic!("{ticket:?}") };
            assert_eq!(error.may_have_charged(), may_have_charged);
        }
    }

    #[test]
    fn requeued_request_counts_as_unsent() {
        let ticket = ticket();
        assert!(ticket.send());
        assert!(ticket.unsend());
        ticket.expire();
        assert!(!ticket.unsend());
        let Poll::Ready(Err(error)) = poll(&ticket) else { panic!("{ticket:?}") };
        assert!(!error.may_have_charged());
    }

    #[test]
    fn errors_report_concurrent_sending() {
        explore(|| {
            let ticket = Arc::new(ticket());
            let sent = Arc::clone(&ticket);
            let sender = thread::spawn(move || {
                let is_sent = sent.send();
                if is_sent {
                    sent.answer(Ok(Answer::Reset));
                }
                is_sent
            });
            let is_shed = ticket.expire();
            let is_sent = sender.join().unwrap();
            match poll(&ticket) {
                Poll::Ready(Ok(_)) => assert!(is_sent && !is_shed),
                Poll::Ready(Err(error)) => {
                    assert_eq!((error.may_have_charged(), is_shed), (is_sent, !is_sent));
                }
                Poll::Pending => panic!("{ticket:?}"),
            }
        });
    }

    #[test]
    fn late_requests_are_requeued_three_times() {
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
