//! Which requests go together, and when.

use std::sync::Arc;

use tokio::time::Instant;

use super::Combiner;
use super::redirect::Target;
use super::work::Work;
use crate::pace::{Bounds, Call, Ended, Fit, Next, Pace};
use crate::ticket::Ticket;
use crate::topology::Member;

/// The requests that wait for a call to one server, and the calls that are under way.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Each slot is held by a task, so a future that is not polled keeps none from others.
    pub(super) pace: Pace<Arc<Ticket>>,
    /// Whether a request that found nothing under way is with Redis.
    pub(super) is_direct: bool,
}

impl Lanes {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { pace: Pace::new(bounds), is_direct: false }
    }

    /// The number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.pace.queued()
    }
}

/// Which way a call goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Direct,
    Task,
    /// Beside the others, as another node sent it here.
    Aside,
}

/// The way of a request that found nothing under way.
pub(super) struct DirectLane(pub(super) Arc<Member>);

impl Drop for DirectLane {
    fn drop(&mut self) {
        self.0.lanes.lock().is_direct = false;
    }
}

/// The way of all others: one call after the other for as long as the slot is worth it.
pub(super) struct TaskLane {
    combiner: Arc<Combiner>,
    member: Arc<Member>,
    is_open: bool,
    call: Option<Call>,
}

impl TaskLane {
    /// For a slot that was given out.
    pub(super) fn open(combiner: &Arc<Combiner>, member: &Arc<Member>) {
        let (run_by, member) = (Arc::clone(combiner), Arc::clone(member));
        let lane = Self { combiner: run_by, member, is_open: true, call: None };
        combiner.runtime.spawn(lane.run());
    }

    async fn run(mut self) {
        let target = Target::first(&self.member);
        let mut ended = None;
        while let Some(tickets) = self.next(ended) {
            ended = Some(self.combiner.call(&target, tickets, Lane::Task).await);
        }
    }

    /// The requests of the next call. Without any the lane closes, under the lock, so that
    /// no request is queued behind a lane that has stopped looking.
    fn next(&mut self, ended: Option<Ended>) -> Option<Vec<Arc<Ticket>>> {
        // The breaker has drawn its conclusion from lost calls already.
        let is_silent = self.member.node.guard().is_open();
        let ended = ended.map(|ended| if is_silent { Ended::Refused } else { ended });
        let now = Instant::now();
        let mut lanes = self.member.lanes.lock();
        if let Some((call, ended)) = self.call.take().zip(ended) {
            lanes.pace.end(call, ended, now);
        }
        let mut work = Work::default();
        let shares = self.member.node.allows_cross_slot();
        let fit = |ticket: &Arc<Ticket>| match ticket.is_waited_for() {
            false => Fit::Gone,
            true if work.admits(&ticket.request, ticket.script(shares)) => Fit::Fits,
            true => Fit::Full,
        };
        let Next { call, shed, another } = lanes.pace.next(fit, now);
        drop(lanes);
        let (call, tickets) = call.unzip();
        self.call = call;
        self.is_open = tickets.is_some();
        if another {
            Self::open(&self.combiner, &self.member);
        }
        self.combiner.expire(&shed);
        tickets
    }
}

impl Drop for TaskLane {
    /// A lane that is not closed by itself ends with its runtime.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut lanes = self.member.lanes.lock();
        lanes.pace.abort(self.call.take()).for_each(|ticket| ticket.fail_pending());
    }
}
