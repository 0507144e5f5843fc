//! Group commit: requests that wait at the same moment are decided in one call.
//!
//! The path of a request:
//!
//! 1. [`Combiner::submit`] finds the [`Member`] that has its key, and sends it at once if nothing is
//!    under way there: its caller carries out the call. Else it goes to the queue of
//!    [`Pace`](crate::pace::Pace), which may shed it.
//! 2. `lane.rs`: a task with a slot takes the requests of the next call out of the queue, as many as
//!    Redis decides in about a millisecond (`work.rs`).
//! 3. `call.rs`: they become one [`Batch`](crate::encode::Batch), or one for each slot of a Cluster where
//!    the node allows no others. The [`Node`](crate::node::Node) sends all of them at once.
//!    `deadlines.rs` answers requests whose time is up meanwhile.
//! 4. `answers.rs`: each request gets its answer out of the reply, or an error.
//! 5. `redirect.rs`: requests that a node sends on to another one go there in a call of their own.
//! 6. [`RedisFuture`](crate::RedisFuture) picks the answer up from the [`Ticket`].

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

/// Carries requests to the servers of a store, many in a call.
///
/// There is no timer. A request is sent at once if no call is under way; requests that arrive
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
    /// Only tests have a time of their own, in microseconds.
    pub(crate) time: Option<Arc<AtomicU64>>,
}

/// A call that the caller of a request carries out while it waits for the answer.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Combiner {
    /// Takes a request on its way. If it is to go alone, its caller carries it out, as a
    /// task would cost a change of threads there and back; it must be polled to its end,
    /// here or there.
    ///
    /// It does not delay other requests while it is not polled: only the calls of tasks are
    /// counted.
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
        if member.node.guard().is_open() {
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

    /// The last instant at which requests are sent. The answer to a later call would arrive too
    /// late, and the caller could not find out whether it was charged.
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

const NO_SERVER: &str = "no server for the key in time";
