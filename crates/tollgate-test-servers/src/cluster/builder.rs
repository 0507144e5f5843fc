//! How a cluster comes to be.

use std::fmt::Write as _;
use std::fs;
use std::iter;

use super::Cluster;
use crate::redis::{Redis, RedisBuilder};

/// Says what a [`Cluster`] shall be, and starts it.
#[derive(Clone, Debug)]
#[must_use = "a cluster that is not started serves nobody"]
pub struct ClusterBuilder {
    masters: usize,
    replicas: usize,
    node: RedisBuilder,
}

impl ClusterBuilder {
    pub(super) fn new() -> Self {
        let node = RedisBuilder::new()
            .set("cluster-enabled", "yes")
            .set("cluster-config-file", NODES)
            .set("cluster-node-timeout", 2_000)
            // A shard that is down leaves the others alone.
            .set("cluster-require-full-coverage", "no")
            // However long it was cut off, a replica may take over.
            .set("cluster-replica-validity-factor", 0)
            // Replicas stay where they are.
            .set("cluster-migration-barrier", 1_000)
            // See `Cluster::failover`.
            .set("repl-ping-replica-period", 1);
        Self { masters: 3, replicas: 3, node }
    }

    /// How many masters share the slots.
    pub fn masters(mut self, count: usize) -> Self {
        self.masters = count;
        self
    }

    /// How many replicas there are over all masters.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Says more about each node. TLS is not among what a cluster here can have.
    pub fn each_node(mut self, tell: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        self.node = tell(self.node);
        self
    }

    /// Starts all nodes and waits until each says that all is well.
    ///
    /// Nobody introduces them to each other: each finds in its file what it would have
    /// written there itself, had it been in the cluster before. That takes no gossip, and
    /// nothing can go wrong halfway.
    ///
    /// # Panics
    ///
    /// If there is no master, redis-server is not installed, or a node does not start.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Cluster {
        assert!(self.masters > 0, "a cluster needs a master");
        let count = self.masters + self.replicas;
        let nodes: Vec<Redis> =
            iter::repeat_with(|| self.node.clone().prepare()).take(count).collect();
        let ids: Vec<String> = iter::repeat_with(id).take(count).collect();
        for (index, node) in nodes.iter().enumerate() {
            let file = self.nodes_file(index, &nodes, &ids);
            fs::write(node.folder().join(NODES), file).expect("a full disk?");
            node.launch();
        }
        let cluster = Cluster { nodes };
        cluster.wait_until_ok();
        cluster
    }

    /// What a node knows of all, in the words of CLUSTER NODES.
    fn nodes_file(&self, of: usize, nodes: &[Redis], ids: &[String]) -> String {
        let mut file = String::new();
        for (index, (node, id)) in nodes.iter().zip(ids).enumerate() {
            let address = node.address();
            let bus = address.port() + 10_000;
            let myself = if index == of { "myself," } else { "" };
            let _ = write!(file, "{id} {address}@{bus} {myself}");
            let _ = if let Some(replica) = index.checked_sub(self.masters) {
                let master = replica % self.masters;
                writeln!(file, "slave {} 0 0 {} connected", ids[master], master + 1)
            } else {
                let [first, end] = [index, index + 1].map(|part| part * SLOTS / self.masters);
                writeln!(file, "master - 0 0 {} connected {first}-{}", index + 1, end - 1)
            };
        }
        // An epoch of its own for each master, the highest of which all know.
        let _ = writeln!(file, "vars currentEpoch {} lastVoteEpoch 0", self.masters);
        file
    }
}

fn id() -> String {
    iter::repeat_with(|| fastrand::digit(16)).take(40).collect()
}

const NODES: &str = "nodes.conf";
const SLOTS: usize = 16_384;
