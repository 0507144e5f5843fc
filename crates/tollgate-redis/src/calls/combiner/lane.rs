//! The task that sends calls for requests that wait.

use std::sync::Arc;

use tokio::time::Instant;

use super::redirect::Route;
use super::work::Work;
use super::{Combiner, Lane};
use crate::calls::pace::{Call, Ended, Fit, Next};
use crate::calls::ticket::Ticket;
use crate::client::node::Node;

/// The lane for requests that wait: one call after another while its slot is needed.
pub(super) struct TaskLane {
    combiner: Arc<Combiner>,
    node: Arc<Node>,
    is_open: bool,
    call: Option<Call>,
}

impl TaskLane {
    /// Spawns a lane, which takes over a slot that was reserved for it.
    pub(super) fn open(combiner: &Arc<Combiner>, node: &Arc<Node>) {
        let (run_by, node) = (Arc::clone(combiner), Arc::clone(node));
        let lane = Self { combiner: run_by, node, is_open: true, call: None };
        combiner.runtime.spawn(lane.run());
    }

    async fn run(mut self) {
        let route = Route::first(&self.node);
        let mut ended = None;
        while let Some(tickets) = self.next(ended) {
            ended = Some(self.combiner.call(&route, tickets, Lane::Task).await);
        }
    }

    /// Takes the requests for the next call. If there are none, the lane closes under the lock, so
    /// that no request is queued behind a lane that has stopped looking.
    fn next(&mut self, ended: Option<Ended>) -> Option<Vec<Arc<Ticket>>> {
        // The breaker has already handled lost calls.
        let is_silent = self.node.breaker.is_open();
        let ended = ended.map(|ended| if is_silent { Ended::Refused } else { ended });
        let now = Instant::now();
        let mut lanes = self.node.lanes.lock();
        if let Some((call, ended)) = self.call.take().zip(ended) {
            lanes.pace.end(call, ended, now);
        }
        let mut work = Work::default();
        let shares = self.node.allows_cross_slot();
        let fit = |ticket: &Arc<Ticket>| match ticket.is_waited_for() {
            false => Fit::Gone,
            true if work.admits(&ticket.request, ticket.separate_slot(shares)) => Fit::Fits,
            true => Fit::Full,
        };
        let Next { call, shed, another } = lanes.pace.next(fit, now);
        drop(lanes);
        let (call, tickets) = call.unzip();
        self.call = call;
        self.is_open = tickets.is_some();
        if another {
            Self::open(&self.combiner, &self.node);
        }
        self.combiner.expire(&shed);
        tickets
    }
}

impl Drop for TaskLane {
    /// A lane that has not closed itself is dropped with its runtime.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut lanes = self.node.lanes.lock();
        lanes.pace.abort(self.call.take()).for_each(|ticket| ticket.fail_pending());
    }
}
