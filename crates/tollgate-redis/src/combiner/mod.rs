//! Group commit: requests that wait at the same moment are decided in one call.
//!
//! The path of a request:
//!
//! 1. [`Combiner::submit`] sends it at once if nothing is under way: its caller carries out the call.
//!    Else it goes to the queue of [`Pace`], which may shed it.
//! 2. `lane.rs`: a task with a slot takes the requests of the next call out of the queue, as many as
//!    Redis decides in a short script (`work.rs`).
//! 3. `redirect.rs`: [`Route`] names the server, and another one if that redirects the call.
//! 4. `call.rs`: the requests become one [`Batch`](crate::encode::Batch), which the
//!    [`Node`](crate::node::Node) sends. `deadlines.rs` answers requests whose time is up meanwhile.
//! 5. `answers.rs`: each request gets its answer out of the reply, or an error.
//! 6. [`RedisFuture`](crate::RedisFuture) picks it up from the [`Ticket`].

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
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tollgate_core::StoreError;

use self::lane::{DirectLane, Lane, Lanes, TaskLane};
use crate::clock::Clock;
use crate::deny_cache::DenyCache;
use crate::ids::Ids;
use crate::pace::{Bounds, Ended, Pace};
use crate::route::Route;
use crate::stats::Counters;
use crate::ticket::Ticket;

/// Carries requests to one server, many in a call.
///
/// There is no timer. A request that finds nothing under way goes at once; those that
/// come meanwhile go together in the next call. The busier a server is, the larger the
/// calls become, and the less each request costs it.
#[derive(Debug)]
pub(crate) struct Combiner {
    route: Route,
    bounds: Bounds,
    shared: Arc<Shared>,
    lanes: Mutex<Lanes>,
}

/// What all combiners of a store have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) runtime: Handle,
    pub(crate) deny_cache: DenyCache,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ids: Ids,
    /// Only tests have a time of their own, in microseconds.
    pub(crate) time: Option<Arc<AtomicU64>>,
}

/// A call that whoever made the request carries out by waiting for the answer.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Combiner {
    pub(crate) fn new(route: Route, bounds: Bounds, shared: Arc<Shared>) -> Self {
        let lanes = Mutex::new(Lanes { pace: Pace::new(bounds), is_direct: false });
        Self { route, bounds, shared, lanes }
    }

    /// Takes a request on its way. If it is to go alone, its caller carries it out, as a
    /// task would cost a change of threads there and back; it must be polled to its end,
    /// here or there.
    ///
    /// It does not stand in the way of others while it is not polled: they count the calls
    /// of tasks alone.
    pub(crate) fn submit(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Option<Drive> {
        if let Some(node) = self.route.silent_node() {
            self.lanes.lock().pace.forget();
            self.refuse(node.guard(), slice::from_ref(ticket));
            return None;
        }
        let mut lanes = self.lanes.lock();
        if lanes.pace.is_idle() && !lanes.is_direct {
            lanes.is_direct = true;
            drop(lanes);
            let guard = DirectLane(Arc::clone(self));
            let ticket = Arc::clone(ticket);
            return Some(Box::pin(async move {
                let begun = Instant::now();
                if guard.0.call(vec![ticket], Lane::Direct).await == Ended::Answered {
                    guard.0.lanes.lock().pace.answered_beside(begun, Instant::now());
                }
            }));
        }
        let now = Instant::now();
        let shed = lanes.pace.submit(Arc::clone(ticket), ticket.deadline, now).err();
        let opens = lanes.pace.another_slot(now);
        drop(lanes);
        if opens {
            TaskLane::open(self);
        }
        if let Some(ticket) = shed {
            self.expire(&[ticket]);
        }
        None
    }

    /// The number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.lanes.lock().pace.queued()
    }

    /// An error that is one of a part of the store, if others are well.
    fn of_here(&self, error: StoreError) -> StoreError {
        if self.route.is_partial() { error.of_a_part() } else { error }
    }
}
