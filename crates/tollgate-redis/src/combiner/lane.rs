//! Which requests go together, and when.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Combiner;
use super::work::Work;
use crate::ticket::Ticket;

/// What waits for a call, and how many are under way.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub(super) queue: VecDeque<Arc<Ticket>>,
    /// Calls that tasks of their own carry out, one after the other.
    pub(super) calls: usize,
    /// Whether a request that found nothing under way is with Redis.
    pub(super) is_direct: bool,
}

/// Which way a call goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Direct,
    Task,
    /// Beside the others, as it may have to wait.
    Aside,
}

/// The way of a request that found nothing under way.
pub(super) struct DirectLane(pub(super) Arc<Combiner>);

impl Drop for DirectLane {
    fn drop(&mut self) {
        self.0.lanes.lock().is_direct = false;
    }
}

/// The way of all others: one call after the other for as long as requests wait.
pub(super) struct TaskLane {
    combiner: Arc<Combiner>,
    is_open: bool,
}

impl TaskLane {
    /// Whoever opens a lane has counted it.
    pub(super) fn open(combiner: &Arc<Combiner>) {
        let lane = Self { combiner: Arc::clone(combiner), is_open: true };
        combiner.shared.runtime.spawn(lane.run());
    }

    async fn run(mut self) {
        while let Some(tickets) = self.next() {
            self.combiner.call(tickets, Lane::Task).await;
        }
    }

    /// The requests of the next call. Without any the lane closes, under the lock, so that
    /// no request is queued behind a lane that has stopped looking.
    fn next(&mut self) -> Option<Vec<Arc<Ticket>>> {
        let mut lanes = self.combiner.lanes.lock();
        let mut work = Work::default();
        let fits = |ticket: &&Arc<Ticket>| work.admits(&ticket.request);
        let count = lanes.queue.iter().take(self.combiner.bounds.batch).take_while(fits).count();
        if count == 0 {
            lanes.calls -= 1;
            self.is_open = false;
            return None;
        }
        Some(lanes.queue.drain(..count).collect())
    }
}

impl Drop for TaskLane {
    /// A lane that is not closed by itself ends with its runtime.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut lanes = self.combiner.lanes.lock();
        lanes.calls -= 1;
        for ticket in lanes.queue.drain(..) {
            ticket.strand();
        }
    }
}
