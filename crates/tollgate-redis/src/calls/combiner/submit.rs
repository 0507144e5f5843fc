//! Which requests share a call, and when it is sent.

use std::slice;
use std::sync::Arc;

use scopeguard::guard;
use tokio::time::{Instant, timeout_at};
use tollgate_core::StoreError;

use super::lane::TaskLane;
use super::redirect::Route;
use super::{Combiner, Drive, Lane, NO_SERVER};
use crate::calls::failure::STORE;
use crate::calls::pace::Ended;
use crate::calls::ticket::Ticket;
use crate::client::node::Node;

impl Combiner {
    /// Submits a request. If it is sent alone, the caller must poll the returned call to completion
    /// or spawn it. Driving the call in the caller saves the thread switches that a task would
    /// cost.
    ///
    /// An unpolled call does not delay other requests, because only tasks' calls are counted.
    pub(crate) fn submit(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Option<Drive> {
        if let Some(node) = self.topology.leader_now(ticket.slot) {
            return self.queue(&node, ticket);
        }
        let (combiner, ticket) = (Arc::clone(self), Arc::clone(ticket));
        Some(Box::pin(async move {
            let leader = combiner.topology.leader(ticket.slot);
            match timeout_at(combiner.last_call(slice::from_ref(&ticket)), leader).await {
                Ok(node) => combiner.hand_over(&node, &ticket),
                Err(_) => ticket.answer(Err(StoreError::not_charged(STORE, NO_SERVER))),
            }
        }))
    }

    pub(super) fn queue(self: &Arc<Self>, node: &Arc<Node>, ticket: &Arc<Ticket>) -> Option<Drive> {
        if node.breaker.is_open() {
            node.lanes.lock().pace.forget();
            self.refuse(node, slice::from_ref(ticket));
            return None;
        }
        let mut lanes = node.lanes.lock();
        if lanes.pace.is_idle() && !lanes.is_direct {
            lanes.is_direct = true;
            drop(lanes);
            let node = guard(Arc::clone(node), |it| it.lanes.lock().is_direct = false);
            let (combiner, ticket) = (Arc::clone(self), Arc::clone(ticket));
            return Some(Box::pin(async move {
                let begun = Instant::now();
                let route = Route::first(&node);
                if combiner.call(&route, vec![ticket], Lane::Direct).await == Ended::Answered {
                    node.lanes.lock().pace.answered_beside(begun, Instant::now());
                }
            }));
        }
        let now = Instant::now();
        let shed = lanes.pace.submit(Arc::clone(ticket), ticket.deadline, now).err();
        let opens = lanes.pace.another_slot(now);
        drop(lanes);
        if opens {
            TaskLane::open(self, node);
        }
        if let Some(ticket) = shed {
            self.expire(&[ticket]);
        }
        None
    }
}
