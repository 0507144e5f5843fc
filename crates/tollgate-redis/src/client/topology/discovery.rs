//! How to discover which Cluster node has which slot.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::calls::pace::Bounds;
use crate::client::check::{self, ServerCheck};
use crate::client::connection::Network;
use crate::client::host_port::HostPort;
use crate::client::node::Node;
use crate::client::node_breaker::NodeBreaker;

/// A task that queries the slot map when there is a reason: a redirection, a lost connection, or a
/// slot without a node. It queries two nodes at a time, so a node that is down does not delay
/// requests, and its successor is found as soon as another node knows it.
#[derive(Debug)]
pub(super) struct Discovery {
    pub(super) seeds: Vec<HostPort>,
    pub(super) connect: Connect,
    /// Notified when there is a reason to query.
    pub(super) doubt: Notify,
    pub(super) task: Mutex<Option<AbortHandle>>,
}

/// The settings for connecting to a node.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) network: Network,
    pub(crate) bounds: Bounds,
    pub(crate) has_breaker: bool,
    pub(crate) check: ServerCheck,
}

/// A healthy Cluster is queried this often, because it may have grown or shrunk.
pub(super) const PERIOD: Duration = Duration::from_secs(30);

impl Discovery {
    pub(super) fn new(seeds: Vec<HostPort>, connect: Connect) -> Self {
        Self { seeds, connect, doubt: Notify::new(), task: Mutex::default() }
    }
}

impl Connect {
    /// Starts to connect to a Cluster node, or to the URL's server. `address` is for logs.
    pub(crate) fn start(
        &self,
        node: Option<&HostPort>,
        address: HostPort,
    ) -> Result<Arc<Node>, String> {
        let Self { network, bounds, has_breaker, check } = self;
        let breaker = NodeBreaker::new(bounds.timeout, *has_breaker);
        let connection = network.connect(node, bounds.timeout)?;
        let node = Node::new(connection, address, *bounds, breaker, Arc::clone(&check.random));
        check::watch(&node, check.clone());
        Ok(node)
    }

    /// Starts to connect to a Cluster node.
    pub(super) fn node(&self, address: &HostPort) -> Option<Arc<Node>> {
        let started = self.start(Some(address), address.clone()).inspect_err(|error| {
            tracing::warn!(target: "tollgate", node = %address, %error, "a node cannot be used");
        });
        started.ok()
    }
}
