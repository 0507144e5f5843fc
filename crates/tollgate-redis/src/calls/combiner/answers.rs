//! The answers to a call's requests, from its reply or its failure.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::StoreError;

use super::{Combiner, Sent};
use crate::calls::failure::{Failure, STORE};
use crate::calls::ticket::{Answer, Leased, Request, Ticket};
use crate::client::node::Node;
use crate::script::encode::Batch;
use crate::script::reply::{Reply, ScriptAnswer};

impl Combiner {
    /// Answers the requests, and returns those to resend immediately. Their keys are on another
    /// node, or Redis rejected them as late although their callers still wait, because an older
    /// request set the call's deadline or Redis' clock stepped forward.
    pub(super) fn distribute(
        &self,
        batch: &Batch,
        reply: Reply,
        tickets: &[Arc<Ticket>],
        sent: Sent,
        node: &Node,
    ) -> Vec<Arc<Ticket>> {
        let mut again = Vec::new();
        let (received, received_at) = (Instant::now(), self.clock.now());
        // Redis read its clock before this reply arrived, so a later time means that the clock has
        // stepped. A late rejection alone does not, because the call may have been in transit for
        // too long.
        let is_clock_wrong =
            node.clock.at_server(received).is_some_and(|latest| reply.now > latest);
        for (ticket, row) in tickets.iter().zip(reply.rows) {
            let answer = match row {
                ScriptAnswer::Verdict(verdict, frozen) => {
                    let between = sent.moment..received_at;
                    self.deny_cache.learn(ticket, &verdict, &frozen, between);
                    Ok(Answer::Verdict(verdict))
                }
                ScriptAnswer::Settlement(settlement) => Ok(Answer::Settlement(settlement)),
                ScriptAnswer::Leased(granted) => {
                    Ok(Answer::Leased(Leased { granted, decided_at: reply.now, sent: sent.moment }))
                }
                ScriptAnswer::Renewal(begun) => {
                    let renewed = |at| match &ticket.request {
                        Request::Renew { receipt, .. } => Some(receipt.begun_at(at)),
                        _ => None,
                    };
                    Ok(Answer::Renewal(begun.and_then(renewed)))
                }
                ScriptAnswer::Reset => {
                    // Denials from before the reset may have been stored since this was sent.
                    self.forget_denials(std::slice::from_ref(ticket));
                    Ok(Answer::Reset)
                }
                ScriptAnswer::Blocked(blocked) => Ok(Answer::Blocked(blocked)),
                ScriptAnswer::Fault { fault, key } => {
                    let key = batch.keys().nth(key).unwrap_or_default();
                    let key = String::from_utf8_lossy(key);
                    // Redis works, so this must not fail other requests.
                    Err(StoreError::invalid(STORE, format_args!("{key}: {fault}"))
                        .with_source(fault))
                }
                ScriptAnswer::Unmade => Err(StoreError::not_charged(
                    STORE,
                    "OOM: the server has no memory for the charge; raise maxmemory",
                )),
                ScriptAnswer::Elsewhere => {
                    // A call with only this request gets a redirection that names the node.
                    again.extend(ticket.unsend().then(|| Arc::clone(ticket)));
                    continue;
                }
                ScriptAnswer::Stale => {
                    self.counters.count_late();
                    if received < ticket.deadline && ticket.take_back() {
                        again.push(Arc::clone(ticket));
                        continue;
                    }
                    Err(StoreError::not_charged(STORE, "the request reached the server too late"))
                }
            };
            ticket.answer(answer);
        }
        if is_clock_wrong {
            // Redis' clock is further ahead than estimated.
            node.clock.relearn(reply.now, sent.instant);
        } else {
            node.clock.learn(reply.now, sent.instant);
        }
        again
    }

    /// Forgets the denials of keys that were reset, or that may have been although the reply is lost.
    pub(super) fn forget_denials(&self, tickets: &[Arc<Ticket>]) {
        for ticket in tickets {
            if let Request::Reset { hash, .. } = ticket.request {
                self.deny_cache.forget_key(hash);
            }
        }
    }

    /// Fails requests without sending them, because the server's breaker is open.
    pub(super) fn refuse(&self, node: &Node, tickets: &[Arc<Ticket>]) {
        self.topology.suspect();
        for ticket in tickets {
            let refusal = node.breaker.refusal();
            let closed = || StoreError::not_charged(STORE, "the breaker closed meanwhile");
            let error = refusal.unwrap_or_else(closed);
            if error.is_overload() {
                self.counters.count_shed();
            }
            ticket.answer(Err(error));
        }
    }

    pub(super) fn fail(&self, node: &Node, failure: &Failure, tickets: &[Arc<Ticket>]) {
        if failure.may_have_moved() || node.is_silent() {
            self.topology.suspect();
        }
        for ticket in tickets {
            ticket.answer(Err(failure.to_store_error()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::{
        Charge, Cost, Decision, Key, Micros, Outcome, Policy, Quota, Timestamp, Verdict,
    };

    use super::*;
    use crate::RedisStore;
    use crate::calls::ticket::NamedCharge;
    use crate::script::names::Name;

    /// A store and its server's node. The node believes that the server's clock is a minute ahead.
    fn known() -> (tokio::runtime::Runtime, RedisStore, Arc<Node>, Instant) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async { RedisStore::connect("redis://127.0.0.1:1").unwrap() });
        let node = store.0.combiner.topology.leader_now(0).unwrap();
        let start = Instant::now();
        node.clock.learn(Timestamp::from_micros(60_000_000), start);
        (runtime, store, node, start)
    }

    fn request(deadline: Instant) -> Arc<Ticket> {
        reset_of(0, deadline)
    }

    fn reset_of(hash: u64, deadline: Instant) -> Arc<Ticket> {
        Arc::new(Ticket::new(Request::Reset { state: Name::new(), hash }, 0, 0, deadline))
    }

    /// Sends an old request, which is late by now, and a new request. Redis rejects both at `now`.
    /// Returns whether the new request is resent.
    fn refuse(
        store: &RedisStore,
        node: &Node,
        sent: Instant,
        now: Timestamp,
        new: &Arc<Ticket>,
    ) -> bool {
        let tickets = [request(Instant::now()), Arc::clone(new)];
        assert!(tickets.iter().all(|ticket| ticket.send()));
        let reply = Reply { now, rows: vec![ScriptAnswer::Stale, ScriptAnswer::Stale] };
        let sent = Sent { instant: sent, moment: 0 };
        let combiner = &store.0.combiner;
        let again = combiner.distribute(&Batch::new(0), reply, &tickets, sent, node);
        assert!(again.iter().all(|ticket| Arc::ptr_eq(ticket, new)));
        !again.is_empty()
    }

    /// Calls that were sent later may have been executed earlier, and may have remembered denials.
    #[test]
    fn reset_answer_clears_the_keys_denials() {
        let (_runtime, store, node, start) = known();
        let combiner = &store.0.combiner;
        let policy = Policy::token_bucket("p", Quota::per_day(1)).unwrap();
        let charge = Charge::new(&policy, &Key::GLOBAL, Cost::ONE);
        let charges = [NamedCharge::new(Name::new(), &charge)].into_iter().collect();
        let epoch = combiner.deny_cache.epoch();
        let decide = Ticket::new(Request::Decide(charges), 0, epoch, start);
        let (now, wait) = (Timestamp::from_micros(60_000_000), Micros::new(60_000_000));
        let outcome = Outcome::Deny { retry_after: wait };
        let decision = Decision { outcome, ..Decision::undecided(1) };
        let denial = ScriptAnswer::Verdict(
            Verdict::single(false, now, decision),
            [wait].into_iter().collect(),
        );
        let answer = |row, ticket: Arc<Ticket>| {
            let sent = Sent { instant: start, moment: combiner.clock.now() };
            let reply = Reply { now, rows: vec![row] };
            combiner.distribute(&Batch::new(0), reply, &[ticket], sent, &node);
            combiner.deny_cache.find(&[charge])
        };
        assert!(answer(denial, Arc::new(decide)).is_some());
        let hash = combiner.deny_cache.hash(&Key::GLOBAL, &policy);
        assert!(answer(ScriptAnswer::Reset, reset_of(!hash, start)).is_some());
        assert!(answer(ScriptAnswer::Reset, reset_of(hash, start)).is_none());
    }

    const MINUTE: Duration = Duration::from_secs(60);

    /// If the clock were taken to be ahead, later deadlines would be too late.
    #[test]
    fn slow_transit_does_not_move_clock() {
        let (_runtime, store, node, start) = known();
        // The call was in transit for as long as the test took to get here.
        let now = node.clock.at_server(Instant::now()).unwrap();
        assert!(refuse(&store, &node, start, now, &request(start + MINUTE)));
        assert_eq!(node.clock.at_server(start), Some(Timestamp::from_micros(60_000_000)));
    }

    #[test]
    fn late_rejection_reveals_clock_step() {
        let (_runtime, store, node, start) = known();
        let stepped = Timestamp::from_micros(90_000_000);
        assert!(refuse(&store, &node, start, stepped, &request(start + MINUTE)));
        assert_eq!(node.clock.at_server(start), Some(stepped));
    }

    /// Their deadlines differ, so the second call can be too late for the next old request.
    #[test]
    fn several_old_requests_delay_new_request() {
        let (_runtime, store, node, start) = known();
        let new = request(start + MINUTE);
        for _ in 0..2 {
            let now = node.clock.at_server(Instant::now()).unwrap();
            assert!(refuse(&store, &node, start, now, &new));
        }
    }
}
