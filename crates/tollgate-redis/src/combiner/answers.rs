//! The answers to the requests of a call, from its reply or its failure.

use std::sync::Arc;
use std::time::Instant;

use tollgate_core::StoreError;

use super::Combiner;
use super::call::Sent;
use crate::encode::Batch;
use crate::failure::{Failure, STORE};
use crate::node::Node;
use crate::reply::{Reply, Row};
use crate::ticket::{Answer, Leased, Request, Ticket};
use crate::topology::Member;

impl Combiner {
    /// Hands out the answers, and returns the requests that are to be sent again at once: their keys are
    /// elsewhere, or they were rejected as late although they were in time by the clock here. No deadline is checked for them in the queue.
    pub(super) fn distribute(
        &self,
        batch: &Batch,
        reply: Reply,
        tickets: &[Arc<Ticket>],
        sent: Sent,
        node: &Node,
    ) -> Vec<Arc<Ticket>> {
        let (mut again, mut is_clock_wrong) = (Vec::new(), false);
        let (received, received_at) = (Instant::now(), self.clock.now());
        for (ticket, row) in tickets.iter().zip(reply.rows) {
            let answer = match row {
                Row::Verdict(verdict, frozen) => {
                    let between = sent.moment..received_at;
                    self.deny_cache.learn(ticket, &verdict, &frozen, between);
                    Ok(Answer::Verdict(verdict))
                }
                Row::Settlement(settlement) => Ok(Answer::Settlement(settlement)),
                Row::Leased(granted) => {
                    Ok(Answer::Leased(Leased { granted, decided_at: reply.now, sent: sent.moment }))
                }
                Row::Renewal(begun) => {
                    let renewed = |at| match &ticket.request {
                        Request::Renew { receipt, .. } => Some(receipt.begun_at(at)),
                        _ => None,
                    };
                    Ok(Answer::Renewal(begun.and_then(renewed)))
                }
                Row::Reset => {
                    // Denials from before it may have come since this was sent.
                    self.deny_cache.forget();
                    Ok(Answer::Reset)
                }
                Row::Fault { fault, key } => {
                    let key = batch.keys().nth(key).unwrap_or_default();
                    let key = String::from_utf8_lossy(key);
                    // Redis works, so other requests must not fail because of this.
                    Err(StoreError::invalid(STORE, format_args!("{key}: {fault}"))
                        .with_source(fault))
                }
                Row::Unmade => Err(StoreError::not_charged(
                    STORE,
                    "OOM: the server has no memory left for a charge; raise maxmemory",
                )),
                Row::Elsewhere => {
                    // By itself it is told where its keys are.
                    again.extend(ticket.unsend().then(|| Arc::clone(ticket)));
                    continue;
                }
                Row::Stale => {
                    self.counters.count_late();
                    if received < ticket.deadline && ticket.take_back() {
                        is_clock_wrong = true;
                        again.push(Arc::clone(ticket));
                        continue;
                    }
                    Err(StoreError::not_charged(STORE, "the request came too late to be decided"))
                }
            };
            ticket.answer(answer);
        }
        if is_clock_wrong {
            // The two clocks differ by more than was known.
            node.relearn(reply.now, sent.instant);
        } else {
            node.learn(reply.now, sent.instant);
        }
        again
    }

    /// The charges of these requests may have been made, but there is no reply.
    pub(super) fn forget_denials(&self, tickets: &[Arc<Ticket>]) {
        if tickets.iter().any(|ticket| matches!(ticket.request, Request::Reset { .. })) {
            self.deny_cache.forget();
        }
    }

    /// Answers requests for a server whose breaker is open, without sending them.
    pub(super) fn refuse(&self, member: &Member, tickets: &[Arc<Ticket>]) {
        self.topology.suspect();
        for ticket in tickets {
            let refusal = member.node.guard().refusal();
            let closed = || StoreError::not_charged(STORE, "the server began to answer just now");
            let error = refusal.unwrap_or_else(closed);
            if error.is_overload() {
                self.counters.count_shed();
            }
            ticket.answer(Err(error));
        }
    }

    pub(super) fn fail(&self, member: &Member, failure: &Failure, tickets: &[Arc<Ticket>]) {
        if failure.may_have_moved() || member.node.is_silent() {
            self.topology.suspect();
        }
        for ticket in tickets {
            ticket.answer(Err(failure.to_store_error()));
        }
    }
}
