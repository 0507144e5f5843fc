//! Answers requests when their deadline passes, or when their runtime shuts down.

use std::pin::pin;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Combiner;
use crate::calls::ticket::Ticket;
use crate::client::node::Node;

impl Combiner {
    /// Waits for a call, and meanwhile expires requests in the call and in its node's queue. The
    /// call may finish before some deadlines and after others.
    pub(super) async fn until_deadlines<C: Future>(
        &self,
        call: C,
        node: Option<&Arc<Node>>,
        tickets: &[Arc<Ticket>],
    ) -> C::Output {
        let mut call = pin!(call);
        loop {
            let next = self.look(node, tickets);
            if let Ok(outcome) = timeout_at(next, call.as_mut()).await {
                return outcome;
            }
        }
    }

    /// Expires late requests, and returns when to check next.
    fn look(&self, node: Option<&Arc<Node>>, sent: &[Arc<Ticket>]) -> Instant {
        let now = Instant::now();
        let queued = node.map(|node| node.lanes.lock().pace.expire(now));
        let (mut late, first) = queued.unwrap_or_default();
        let mut next = first.unwrap_or(now + self.bounds.timeout);
        for ticket in sent {
            if ticket.deadline <= now {
                late.push(Arc::clone(ticket));
            } else {
                next = next.min(ticket.deadline);
            }
        }
        self.expire(&late);
        next
    }

    /// Fails requests that cannot be answered before their deadline.
    pub(super) fn expire(&self, late: &[Arc<Ticket>]) {
        for ticket in late {
            if ticket.expire() {
                self.counters.count_shed();
            }
        }
    }
}

/// A call's requests, which fail if the call is dropped with its runtime.
pub(super) struct Unanswered(pub(super) Vec<Arc<Ticket>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.iter().for_each(|ticket| ticket.fail_pending());
    }
}
