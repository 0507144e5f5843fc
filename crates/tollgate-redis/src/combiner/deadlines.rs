//! Those whose time is up while they wait, or whose runtime ends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::time::sleep_until;

use super::Combiner;
use crate::ticket::Ticket;

impl Combiner {
    /// Waits for a call, and meanwhile answers those whose time is up, in the call and in
    /// the queue: the call may end in time for some and too late for others.
    pub(super) async fn until_deadlines<C: Future>(
        &self,
        call: C,
        tickets: &[Arc<Ticket>],
    ) -> C::Output {
        let mut call = pin!(call);
        let mut timer = pin!(sleep_until(self.look(tickets).into()));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
                return Poll::Ready(outcome);
            }
            while timer.as_mut().poll(cx).is_ready() {
                let next = self.look(tickets);
                timer.as_mut().reset(next.into());
            }
            Poll::Pending
        })
        .await
    }

    /// Answers those whose time is up, and says when to look next.
    fn look(&self, sent: &[Arc<Ticket>]) -> Instant {
        let now = Instant::now();
        let (mut late, first) = self.lanes.lock().pace.expire(now);
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

    /// Answers requests that get no answer in time.
    pub(super) fn expire(&self, late: &[Arc<Ticket>]) {
        if late.is_empty() {
            return;
        }
        let is_partial = self.route.is_partial();
        for ticket in late {
            if ticket.expire(is_partial) {
                self.shared.counters.count_shed();
            }
        }
    }
}

/// Requests of a call that is given up with its runtime.
pub(super) struct Unanswered<'a>(pub(super) &'a [Arc<Ticket>]);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for ticket in self.0 {
            ticket.fail_pending();
        }
    }
}
