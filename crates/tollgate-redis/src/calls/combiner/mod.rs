//! Group commit: requests that wait at the same time share a call.
//!
//! A request's path:
//!
//! 1. `submit.rs` finds the [`Node`](crate::client::node::Node) that has its key. If no call is in
//!    flight there, the request is sent immediately, and its caller drives the call. Otherwise it
//!    is queued in [`Pace`](crate::calls::pace::Pace), which may shed it.
//! 2. `lane.rs`: a task with a slot dequeues the requests for the next call, up to the
//!    number that Redis decides in about a millisecond (`work.rs`).
//! 3. `call.rs`: they become a [`Batch`](crate::script::encode::Batch), or a batch per Cluster slot
//!    if the node does not allow cross-slot calls. The
//!    [`Node`](crate::client::node::Node) sends all batches together. If a request's
//!    deadline passes meanwhile, `deadlines.rs` answers it.
//! 4. `answers.rs`: each request gets its answer from the reply, or an error.
//! 5. `redirect.rs`: requests that a node redirects are sent to the other node in a separate call.
//!    `detached.rs` drives calls without a caller.
//! 6. [`RedisFuture`](crate::RedisFuture) takes the answer from the [`Ticket`].

mod answers;
mod call;
mod deadlines;
mod detached;
mod lane;
mod redirect;
mod submit;
mod work;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::runtime::Handle;
use tokio::time::Instant;

pub(crate) use self::detached::{Detached, Drive};
use crate::calls::ids::Ids;
use crate::calls::pace::Bounds;
use crate::calls::ticket::Ticket;
use crate::client::topology::Topology;
use crate::clock::{Clock, Moment};
use crate::deny_cache::DenyCache;
use crate::stats::Counters;

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
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ids: Ids,
    /// Set in tests only, in microseconds.
    pub(crate) time: Option<Arc<AtomicU64>>,
}

/// How a call is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Direct,
    Task,
    /// Outside the lanes, because another node redirected it here.
    Aside,
}

/// Just before a call was sent.
#[derive(Clone, Copy)]
struct Sent {
    /// By the clock for deadlines and timers.
    instant: Instant,
    /// By the clock for leases and remembered denials.
    moment: Moment,
}

impl Combiner {
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
