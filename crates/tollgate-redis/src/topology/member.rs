//! A server of a store.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::place::Place;
use crate::combiner::Lanes;
use crate::node::Node;
use crate::pace::Bounds;

/// A server.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) node: Arc<Node>,
    /// The requests for all its slots.
    pub(crate) lanes: Mutex<Lanes>,
    /// Permits for calls that other nodes redirected here.
    pub(crate) room: Arc<Semaphore>,
    /// When a redirection last named this node. A node that slots are moving to may not have any
    /// yet.
    pub(super) named: Mutex<Instant>,
}

/// The maximum number of concurrent calls redirected to a node.
const REDIRECTED: usize = 64;

impl Member {
    pub(super) fn new(place: Place, node: Arc<Node>, bounds: Bounds) -> Arc<Self> {
        let (lanes, named) = (Mutex::new(Lanes::new(bounds)), Mutex::new(Instant::now()));
        Arc::new(Self { place, node, lanes, room: Arc::new(Semaphore::new(REDIRECTED)), named })
    }
}
