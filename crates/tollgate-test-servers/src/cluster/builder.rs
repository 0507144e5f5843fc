//! Configures and starts a cluster.

use std::fmt::Write as _;
use std::fs;
use std::iter;

use super::Cluster;
use crate::redis::{Redis, RedisBuilder};

/// Builds a [`Cluster`].
#[derive(Clone, Debug)]
#[must_use = "call start() to start the cluster"]
pub struct ClusterBuilder {
    masters: usize,
    replicas: usize,
    node: RedisBuilder,
    clocks: Vec<i64>,
}

impl ClusterBuilder {
    pub(super) fn new() -> Self {
        let node = RedisBuilder::new()
            .set("cluster-enabled", "yes")
            .set("cluster-config-file", NODES)
            .set("cluster-node-timeout", 2_000)
            // The remaining shards keep serving when a shard is down.
            .set("cluster-require-full-coverage", "no")
            // A replica may take over no matter how long it was disconnected.
            .set("cluster-replica-validity-factor", 0)
            // Replicas never move to another master.
            .set("cluster-migration-barrier", 1_000)
            // See `Cluster::failover`.
            .set("repl-ping-replica-period", 1);
        Self { masters: 3, replicas: 3, node, clocks: Vec::new() }
    }

    /// Sets the number of masters. Default: 3.
    pub fn masters(mut self, count: usize) -> Self {
        self.masters = count;
        self
    }

    /// Sets the total number of replicas. Default: 3.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Changes each node's settings. TLS is not supported here.
    pub fn each_node(mut self, tell: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        self.node = tell(self.node);
        self
    }

    /// Sets how many microseconds the clocks of the first nodes are
    /// [ahead](RedisBuilder::clock_ahead).
    pub fn clocks_ahead(mut self, micros: impl IntoIterator<Item = i64>) -> Self {
        self.clocks = micros.into_iter().collect();
        self
    }

    /// Starts all nodes and waits until each reports `cluster_state:ok`.
    ///
    /// Each node starts with a complete `nodes.conf`, as it would after a restart. The cluster
    /// therefore forms without `CLUSTER MEET` and without waiting for gossip.
    ///
    /// # Panics
    ///
    /// If there is no master, redis-server is not installed, or a node does not start.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Cluster {
        assert!(self.masters > 0, "a cluster needs a master");
        let count = self.masters + self.replicas;
        let clocks = self.clocks.iter().copied().chain(iter::repeat(0));
        let nodes = clocks.map(|ahead| self.node.clone().clock_ahead(ahead).prepare());
        let nodes: Vec<Redis> = nodes.take(count).collect();
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

    /// The `nodes.conf` for node `of`. It uses the `CLUSTER NODES` format.
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
        // Master `i` has epoch `i + 1`, and the current epoch is the highest.
        let _ = writeln!(file, "vars currentEpoch {} lastVoteEpoch 0", self.masters);
        file
    }
}

fn id() -> String {
    iter::repeat_with(|| fastrand::digit(16)).take(40).collect()
}

const NODES: &str = "nodes.conf";
const SLOTS: usize = 16_384;
