//! A server's queue.

use std::sync::Arc;

use crate::calls::pace::{Bounds, Pace};
use crate::calls::ticket::Ticket;

/// The requests that wait for a call to a server, and the calls in flight.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Each slot is held by a task, so a future that is not polled cannot block other requests.
    pub(crate) pace: Pace<Arc<Ticket>>,
    /// Whether a direct call is in flight: a request that found the server idle.
    pub(crate) is_direct: bool,
}

impl Lanes {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { pace: Pace::new(bounds), is_direct: false }
    }
}
