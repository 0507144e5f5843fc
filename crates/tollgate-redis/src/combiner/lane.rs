//! Which requests share a call, and when it is sent.

use std::sync::Arc;

use tokio::time::Instant;

use super::Combiner;
use super::redirect::Target;
use super::work::Work;
use crate::pace::{Bounds, Call, Ended, Fit, Next, Pace};
use crate::ticket::Ticket;
use crate::topology::Member;

/// The requests that wait for a call to a server, and the calls in flight.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Each slot is held by a task, so a future that is not polled cannot block other requests.
    pub(super) pace: Pace<Arc<Ticket>>,
    /// Whether a direct call is in flight: a request that found the server idle.
    pub(super) is_direct: bool,
}

impl Lanes {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { pace: Pace::new(bounds), is_direct: false }
    }

    /// Returns the number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.pace.queued()
    }
}

/// How a call is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Direct,
    Task,
    /// Outside the lanes, because another node redirected it here.
    Aside,
}

/// The lane for a request that found the server idle.
pub(super) struct DirectLane(pub(super) Arc<Member>);

impl Drop for DirectLane {
    fn drop(&mut self) {
        self.0.lanes.lock().is_direct = false;
    }
}

/// The lane for all other requests: one call after another while its slot is needed.
pub(super) struct TaskLane {
    combiner: Arc<Combiner>,
    member: Arc<Member>,
    is_open: bool,
    call: Option<Call>,
}

impl TaskLane {
    /// Spawns a lane, which takes over a slot that was reserved for it.
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

    /// Takes the requests for the next call. If there are none, the lane closes under the lock, so
    /// that no request is queued behind a lane that has stopped looking.
    fn next(&mut self, ended: Option<Ended>) -> Option<Vec<Arc<Ticket>>> {
        // The breaker has already handled lost calls.
        let is_silent = self.member.node.breaker().is_open();
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
            true if work.admits(&ticket.request, ticket.separate_slot(shares)) => Fit::Fits,
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
    /// A lane that has not closed itself is dropped with its runtime.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut lanes = self.member.lanes.lock();
        lanes.pace.abort(self.call.take()).for_each(|ticket| ticket.fail_pending());
    }
}
