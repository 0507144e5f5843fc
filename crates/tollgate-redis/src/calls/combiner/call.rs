//! A call to one server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{StoreError, Timestamp};

use super::deadlines::Unanswered;
use super::redirect::Route;
use super::{Combiner, Lane, Sent};
use crate::calls::failure::{Failure, Refusal, STORE};
use crate::calls::pace::Ended;
use crate::calls::ticket::{Request, Ticket};
use crate::client::node::Sending;
use crate::script::encode::{Batch, KeyedCharge};

impl Combiner {
    /// Sends requests to a server and answers them. Requests that it rejects because another server
    /// has their key are redirected separately.
    pub(super) async fn call(
        self: &Arc<Self>,
        route: &Route,
        tickets: Vec<Arc<Ticket>>,
        lane: Lane,
    ) -> Ended {
        let mut unanswered = Unanswered(tickets);
        let tickets = &mut unanswered.0;
        if route.node.breaker.is_open() {
            self.refuse(&route.node, tickets);
            return Ended::Refused;
        }
        if lane == Lane::Task {
            self.hand_over_others(route, tickets);
        }
        if !self.ensure_clock_known(route, tickets).await {
            return Ended::Lost;
        }
        let mut ended = None;
        let mut allows_cross_slot = route.node.allows_cross_slot();
        // Some requests are resent immediately: those rejected as late although their deadline has
        // not passed, and those with keys on another node, so the next reply names the node.
        while !tickets.is_empty() {
            let now = self.send(route, tickets, lane, allows_cross_slot).await;
            ended = ended.or(Some(now));
            allows_cross_slot = false;
        }
        ended.unwrap_or(Ended::Refused)
    }

    /// Requeues requests with a slot that has moved to another leader.
    fn hand_over_others(self: &Arc<Self>, route: &Route, tickets: &mut Vec<Arc<Ticket>>) {
        let slots = tickets.iter().map(|ticket| ticket.slot);
        let mut others = self.topology.others(&route.node, slots).into_iter();
        tickets.retain(|ticket| match others.next().flatten() {
            Some(node) => {
                self.hand_over(&node, ticket);
                false
            }
            None => true,
        });
    }

    /// Sends one batch per separate slot, and a shared batch for the rest. `tickets` retains the
    /// requests that must be resent.
    async fn send(
        self: &Arc<Self>,
        route: &Route,
        tickets: &mut Vec<Arc<Ticket>>,
        lane: Lane,
        mut allows_cross_slot: bool,
    ) -> Ended {
        let node = &route.node;
        // For a single slot, the cross-slot script is slower.
        allows_cross_slot &= tickets.iter().any(|ticket| ticket.slot != tickets[0].slot);
        let separate_slot = |ticket: &Arc<Ticket>| ticket.separate_slot(allows_cross_slot);
        tickets.sort_by_key(separate_slot);
        let sent = Sent { instant: Instant::now(), moment: self.clock.now() };
        let time = self.time.as_ref().map(|time| time.load(Ordering::Relaxed));
        let time = time.map(Timestamp::from_micros);
        let now = time.or_else(|| node.clock.at_server(sent.instant)).unwrap_or_default();
        let mut batches: SmallVec<[Batch; 1]> = SmallVec::new();
        let mut last = None;
        tickets.retain(|ticket| {
            if !ticket.send() {
                return false;
            }
            let slot = separate_slot(ticket);
            if last.replace(slot) != Some(slot) {
                let mut batch = Batch::at(self.ids.nonce(sent.moment), now);
                if slot.is_none() {
                    batch.set_cross_slot();
                }
                batches.push(batch);
            }
            batches.last_mut().is_some_and(|batch| add(batch, ticket))
        });
        batches.retain(|batch| !batch.is_empty());
        // Tests with their own time have no deadlines in it.
        if time.is_none() {
            for (batch, tickets) in batches.iter_mut().zip(parts(tickets, separate_slot)) {
                let first = tickets.iter().map(|ticket| ticket.deadline).min();
                batch.set_deadline(first.and_then(|first| node.clock.at_server(first)));
            }
        }
        let Some(last) = tickets.iter().map(|ticket| ticket.deadline).max() else {
            return Ended::Refused;
        };
        let call =
            node.call(&batches, Sending { time, deadline: last, is_asking: route.is_asking });
        let outcomes = match &tickets[..] {
            // The call finishes at its only deadline, so it needs no timer. Another call watches
            // the queue.
            [_] if lane == Lane::Direct => call.await,
            _ => self.until_deadlines(call, Some(&route.node), tickets).await,
        };
        let took = sent.instant.elapsed();
        let mut ended = Ended::Refused;
        let mut again = Vec::new();
        for ((batch, tickets), outcome) in
            batches.iter().zip(parts(tickets, separate_slot)).zip(outcomes)
        {
            self.counters.count_call(tickets.len(), took, &outcome);
            let now = match outcome.map(|bytes| batch.parse(&bytes)) {
                Ok(Ok(reply)) => {
                    again.extend(self.distribute(batch, reply, tickets, sent, node));
                    Ended::Answered
                }
                Ok(Err(bad)) => {
                    // Later replies are probably shifted as well, so the connection cannot be
                    // trusted.
                    node.distrust();
                    self.forget_denials(tickets);
                    for ticket in tickets {
                        let error = StoreError::maybe_charged(STORE, bad).with_source(bad);
                        ticket.answer(Err(error));
                    }
                    Ended::Lost
                }
                Err(Failure::Refused(_)) if batch.is_cross_slot() => {
                    // Resend the requests by slot, because those calls get more specific answers.
                    again.extend(tickets.iter().filter(|ticket| ticket.unsend()).cloned());
                    Ended::Refused
                }
                Err(Failure::Refused(refusal)) => {
                    self.redirect(refusal, route, tickets);
                    Ended::Refused
                }
                Err(failure) => {
                    self.forget_denials(tickets);
                    self.fail(&route.node, &failure, tickets);
                    Ended::Lost
                }
            };
            ended = ended.max(now);
        }
        *tickets = again;
        ended
    }

    /// Queries the server's time if it is unknown, because Redis may execute a call without a
    /// deadline after its callers have given up. If the query fails, all requests fail with its
    /// error.
    async fn ensure_clock_known(&self, route: &Route, tickets: &[Arc<Ticket>]) -> bool {
        let node = &route.node;
        let last = tickets.iter().map(|ticket| ticket.deadline).max();
        let Some(last) = last.filter(|_| self.time.is_none() && !node.knows_time()) else {
            return true;
        };
        let learn = node.learn_time(last);
        let outcome = self.until_deadlines(learn, Some(&route.node), tickets).await;
        let Err(failure) = outcome else { return true };
        // A time query charges no key, with or without an answer.
        let reason = match failure {
            Failure::Lost(reason) => reason,
            Failure::Refused(refusal) => refusal.to_string(),
        };
        self.fail(&route.node, &Failure::Refused(Refusal::Other(reason)), tickets);
        false
    }
}

/// Splits sorted requests by batch.
fn parts(
    tickets: &[Arc<Ticket>],
    separate_slot: impl Fn(&Arc<Ticket>) -> Option<u16>,
) -> impl Iterator<Item = &[Arc<Ticket>]> {
    tickets.chunk_by(move |one, other| separate_slot(one) == separate_slot(other))
}

/// Adds a request to a call, or fails it.
fn add(batch: &mut Batch, ticket: &Ticket) -> bool {
    let added = match &ticket.request {
        Request::Decide(charges) => {
            let keyed: SmallVec<[KeyedCharge<'_>; 4]> = charges
                .iter()
                .map(|named| KeyedCharge { key: &named.state, charge: named.as_charge() })
                .collect();
            batch.decide(&keyed)
        }
        Request::Settle { state, settled, receipt, actual } => {
            batch.settle(state, settled, receipt, *actual)
        }
        Request::Renew { state, settled, receipt } => batch.renew(state, settled, receipt),
        Request::Reset { state, .. } => batch.reset(state),
        Request::Block { state, policy, block } => batch.block(state, policy, *block),
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
