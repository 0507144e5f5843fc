//! One call to one server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use tollgate_core::{StoreError, Timestamp};

use super::Combiner;
use super::deadlines::Unanswered;
use super::lane::Lane;
use crate::clock::Moment;
use crate::encode::{Batch, Line};
use crate::failure::{Failure, Refusal, STORE};
use crate::pace::Ended;
use crate::route::Target;
use crate::ticket::{Request, Ticket};

/// What is left to do after a call.
pub(super) enum After {
    Done(Ended),
    /// What is left of the requests is to be sent once more.
    Again,
    /// Nothing was carried out.
    Refused(Refusal),
}

/// Just before a call was sent.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// By the clock of deadlines and timers.
    pub(super) instant: Instant,
    /// By the clock of what is held and remembered.
    pub(super) moment: Moment,
}

impl Combiner {
    /// Sends requests to one server. What it says if that refuses all of them is for the
    /// caller to deal with, and so are requests that are to be sent once more.
    pub(super) async fn call_at(
        self: &Arc<Self>,
        target: &Target,
        tickets: &mut Vec<Arc<Ticket>>,
        lane: Lane,
    ) -> After {
        let node = target.node();
        if !self.ensure_clock_known(target, tickets).await {
            return After::Done(Ended::Lost);
        }
        tickets.retain(|ticket| ticket.send());
        let sent = Sent { instant: Instant::now(), moment: self.shared.clock.now() };
        let time = self.shared.time.as_ref().map(|time| time.load(Ordering::Relaxed));
        let now = time.map(Timestamp::from_micros).or_else(|| node.at_server(sent.instant));
        let nonce = self.shared.ids.nonce(sent.moment);
        let mut batch = Batch::at(nonce, now.unwrap_or_default());
        tickets.retain(|ticket| add(&mut batch, ticket));
        if tickets.is_empty() {
            return After::Done(Ended::Refused);
        }
        let unanswered = Unanswered(tickets);
        let deadlines = || tickets.iter().map(|ticket| ticket.deadline);
        let last = deadlines().max().unwrap_or(sent.instant);
        // Tests that have a time of their own have no deadlines in it.
        let first = deadlines().min().filter(|_| time.is_none());
        batch.set_deadline(first.and_then(|first| node.at_server(first)));
        let call = node.call(&batch, time.map(Timestamp::from_micros), last, target.is_asking());
        let outcome = match &tickets[..] {
            // The call ends at its deadline, so it takes no watch; and what is queued is
            // another call's.
            [_] if lane == Lane::Direct => call.await,
            _ => self.until_deadlines(call, tickets).await,
        };
        std::mem::forget(unanswered);
        self.shared.counters.count_call(tickets.len(), sent.instant.elapsed(), &outcome);
        match outcome.map(|bytes| batch.parse(&bytes)) {
            Ok(Ok(reply)) => {
                *tickets = self.distribute(&batch, reply, tickets, sent, node);
                if tickets.is_empty() {
                    return After::Done(Ended::Answered);
                }
                return After::Again;
            }
            Ok(Err(bad)) => {
                // Whatever this answers, other replies may be off by one as well.
                node.distrust();
                self.forget_denials(tickets);
                for ticket in tickets {
                    ticket.answer(Err(StoreError::maybe_charged(STORE, bad).with_source(bad)));
                }
            }
            Err(Failure::Refused(refusal)) => return After::Refused(refusal),
            Err(failure) => {
                self.forget_denials(tickets);
                self.fail(&failure, tickets);
            }
        }
        After::Done(Ended::Lost)
    }

    /// Sees to it that a server's time is known, as a call without deadlines may be carried
    /// out when nobody waits for it any more. If it cannot be had, all are answered.
    async fn ensure_clock_known(&self, target: &Target, tickets: &[Arc<Ticket>]) -> bool {
        let node = target.node();
        let last = tickets.iter().map(|ticket| ticket.deadline).max();
        let Some(last) = last.filter(|_| self.shared.time.is_none() && !node.knows_time()) else {
            return true;
        };
        let unanswered = Unanswered(tickets);
        let outcome = self.until_deadlines(node.learn_time(last), tickets).await;
        std::mem::forget(unanswered);
        let Err(failure) = outcome else { return true };
        // To ask for the time charges nobody, whether it is answered or not.
        let reason = match failure {
            Failure::Lost(reason) => reason,
            Failure::Refused(refusal) => refusal.to_string(),
        };
        self.fail(&Failure::Refused(Refusal::Other(reason)), tickets);
        false
    }
}

/// Adds a request to a call, or answers it.
fn add(batch: &mut Batch, ticket: &Ticket) -> bool {
    let added = match &ticket.request {
        Request::Decide(lines) => {
            let lines: SmallVec<[Line<'_>; 4]> = lines
                .iter()
                .map(|line| Line {
                    key: &line.state,
                    policy: &line.policy,
                    cost: line.cost,
                    enforce: line.enforce,
                    dry: line.dry,
                })
                .collect();
            batch.decide(&lines)
        }
        Request::Settle { state, settled, receipt, actual, lifetime } => {
            batch.settle_within(*lifetime, state, settled, receipt, *actual)
        }
        Request::Renew { state, settled, receipt } => batch.renew(state, settled, receipt),
        Request::Reset { state } => batch.reset(state),
        Request::Lease { state, policy, spent, ask } => batch.lease(state, policy, spent, *ask),
    };
    match added {
        Ok(()) => true,
        Err(error) => {
            ticket.answer(Err(StoreError::invalid(STORE, error)));
            false
        }
    }
}
