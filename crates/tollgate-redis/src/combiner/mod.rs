//! Group commit: requests that wait at the same time share a call.
//!
//! A request's path:
//!
//! 1. [`Combiner::submit`] finds the [`Member`] that has its key. If no call is in flight there,
//!    the request is sent immediately, and its caller drives the call. Otherwise it is queued in
//!    [`Pace`](crate::pace::Pace), which may shed it.
//! 2. `lane.rs`: a task with a slot dequeues the requests for the next call, as many as Redis
//!    decides in about a millisecond (`work.rs`).
//! 3. `call.rs`: they become one [`Batch`](crate::encode::Batch), or one per Cluster slot if the
//!    node does not allow cross-slot calls. The [`Node`](crate::node::Node) sends all batches
//!    together. `deadlines.rs` answers requests whose deadline passes meanwhile.
//! 4. `answers.rs`: each request gets its answer from the reply, or an error.
//! 5. `redirect.rs`: requests that a node redirects are sent to the other node in a separate call.
//! 6. [`RedisFuture`](crate::RedisFuture) takes the answer from the [`Ticket`].

mod answers;
mod call;
mod deadlines;
mod lane;
mod redirect;
mod work;

use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tollgate_core::StoreError;

pub(crate) use self::lane::Lanes;
use self::lane::{DirectLane, Lane, TaskLane};
use self::redirect::Target;
use crate::clock::Clock;
use crate::deniers::Deniers;
use crate::deny_cache::DenyCache;
use crate::failure::STORE;
use crate::ids::Ids;
use crate::pace::{Bounds, Ended};
use crate::stats::Counters;
use crate::ticket::Ticket;
use crate::topology::{Member, Topology};

/// Sends requests to a store's servers, many per call.
///
/// There is no timer. If no call is in flight, a request is sent immediately; requests that arrive
/// meanwhile share the next call. The busier a server is, the larger the calls become, and the less
/// each request costs it.
#[derive(Debug)]
pub(crate) struct Combiner {
    pub(crate) topology: Arc<Topology>,
    pub(crate) bounds: Bounds,
    pub(crate) runtime: Handle,
    pub(crate) deny_cache: DenyCache,
    pub(crate) deniers: Deniers,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ids: Ids,
    /// Set in tests only, in microseconds.
    pub(crate) time: Option<Arc<AtomicU64>>,
}

/// A call that a request's caller drives while it waits for the answer.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Combiner {
    /// Submits a request. If it is sent alone, the caller must poll the returned call to completion
    /// or spawn it. Driving the call in the caller saves the thread switches that a task would
    /// cost.
    ///
    /// An unpolled call does not delay other requests, because only tasks' calls are counted.
    pub(crate) fn submit(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Option<Drive> {
        if let Some(member) = self.topology.leader_now(ticket.slot) {
            return self.queue(&member, ticket);
        }
        let (combiner, ticket) = (Arc::clone(self), Arc::clone(ticket));
        Some(Box::pin(async move {
            let leader = combiner.topology.leader(ticket.slot);
            match timeout_at(combiner.last_call(slice::from_ref(&ticket)), leader).await {
                Ok(member) => combiner.hand_over(&member, &ticket),
                Err(_) => ticket.answer(Err(StoreError::not_charged(STORE, NO_SERVER))),
            }
        }))
    }

    fn queue(self: &Arc<Self>, member: &Arc<Member>, ticket: &Arc<Ticket>) -> Option<Drive> {
        if member.node.breaker().is_open() {
            member.lanes.lock().pace.forget();
            self.refuse(member, slice::from_ref(ticket));
            return None;
        }
        let mut lanes = member.lanes.lock();
        if lanes.pace.is_idle() && !lanes.is_direct {
            lanes.is_direct = true;
            drop(lanes);
            let lane = DirectLane(Arc::clone(member));
            let (combiner, ticket) = (Arc::clone(self), Arc::clone(ticket));
            return Some(Box::pin(async move {
                let begun = Instant::now();
                let target = Target::first(&lane.0);
                if combiner.call(&target, vec![ticket], Lane::Direct).await == Ended::Answered {
                    lane.0.lanes.lock().pace.answered_beside(begun, Instant::now());
                }
            }));
        }
        let now = Instant::now();
        let shed = lanes.pace.submit(Arc::clone(ticket), ticket.deadline, now).err();
        let opens = lanes.pace.another_slot(now);
        drop(lanes);
        if opens {
            TaskLane::open(self, member);
        }
        if let Some(ticket) = shed {
            self.expire(&[ticket]);
        }
        None
    }

    /// Returns the last instant at which to send requests. The answer to a later call would arrive
    /// too late, and the caller could not find out whether it was charged.
    fn last_call(&self, tickets: &[Arc<Ticket>]) -> Instant {
        let last = tickets.iter().map(|ticket| ticket.deadline).max();
        let last = last.unwrap_or_else(Instant::now);
        last.checked_sub(self.bounds.timeout / 8).unwrap_or(last)
    }
}

impl Drop for Combiner {
    fn drop(&mut self) {
        self.topology.end();
    }
}

const NO_SERVER: &str = "no server for the key was found in time";
