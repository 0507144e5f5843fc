//! Group commit: what waits at the same moment is decided in one call.
//!
//! | file | is |
//! |---|---|
//! | `lane.rs` | which requests go together, and when, as `Pace` says |
//! | `work.rs` | how much work of Redis they may be |
//! | `travel.rs` | their way from server to server, until one carries them out |
//! | `call.rs` | one call to one server |
//! | `answers.rs` | what its reply or its failure is to each of them |
//! | `watch.rs` | those whose time is up meanwhile |

mod answers;
mod call;
mod lane;
mod travel;
mod watch;
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
use crate::pace::{Bounds, Pace};
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
                guard.0.call(vec![ticket], Lane::Direct).await;
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
