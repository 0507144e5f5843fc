//! A Redis Cluster.

mod builder;
mod migration;
mod view;

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::redis::Redis;
use crate::wait::until;
use view::View;

pub use builder::ClusterBuilder;
pub use migration::Migration;

/// A running Redis Cluster with masters and replicas.
///
/// Methods refer to nodes by index. The initial masters have the first indices and own equal slot
/// ranges in that order. The replicas follow and are assigned to the masters in turn. A failover
/// changes roles, not indices.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts three masters, each with a replica.
    ///
    /// This takes two to three seconds because a new node waits 2 s before it accepts writes.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Configures a cluster's size and nodes.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::new()
    }

    /// The nodes, by index.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The node at an index.
    ///
    /// # Panics
    ///
    /// If no node has that index.
    #[must_use]
    pub fn node(&self, index: usize) -> &Redis {
        &self.nodes[index]
    }

    /// The URL for clients: `redis-cluster://…` with the other nodes as `?node=`.
    #[must_use]
    pub fn url(&self) -> String {
        let first = self.nodes[0].url().replacen("redis", "redis-cluster", 1);
        let others = self.nodes[1..].iter().map(|node| format!("node={}", node.address()));
        format!("{first}?{}", others.collect::<Vec<_>>().join("&"))
    }

    /// The slot that a key hashes to.
    #[must_use]
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> u16 {
        let command: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key.as_ref()];
        u16::try_from(self.witness().cmd(&command).number()).expect("a slot")
    }

    /// The slot's master according to the first node that is up.
    ///
    /// # Panics
    ///
    /// If the slot has no master.
    #[must_use]
    pub fn master_of(&self, slot: u16) -> usize {
        let master = self.view(self.witness()).master_of(slot);
        master.unwrap_or_else(|| panic!("slot {slot} has no master"))
    }

    /// A master's replicas, including those that are down.
    #[must_use]
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        self.view(self.witness()).replicas_of(master)
    }

    /// The slot ranges, each with its master.
    #[must_use]
    pub fn slots(&self) -> Vec<(RangeInclusive<u16>, usize)> {
        self.view(self.witness()).slots()
    }

    /// Promotes a replica while the old master is up. The old master becomes its replica, and no
    /// write is lost.
    ///
    /// # Panics
    ///
    /// If the node is not a replica, or does not become master within 20 s.
    pub fn failover(&self, replica: usize) {
        let node = &self.nodes[replica];
        let slot = until(&format!("node {replica} follows a master with slots"), PATIENCE, || {
            self.view(node).slot_followed_by(replica)
        });
        let old = self.master_of(slot);
        // Redis before 6.2 waits forever if the master's replication offset is 0.
        until(&format!("node {old} has a replication offset above 0"), PATIENCE, || {
            (self.nodes[old].info("master_repl_offset") != "0").then_some(())
        });
        let answer = node.cmd(&["CLUSTER", "FAILOVER"]);
        assert_eq!(answer.error(), None, "node {replica} cannot take over");
        self.wait_until_serves(replica, slot);
        until(&format!("all nodes know that node {old} follows"), PATIENCE, || {
            let mut up = self.nodes.iter().filter(|node| node.is_up());
            up.all(|node| self.view(node).replicas_of(replica).contains(&old)).then_some(())
        });
        self.nodes[old].wait_until_ready();
    }

    /// Waits until a new master replaces `old`, which was killed or stopped, for a slot, and until
    /// all nodes that are up report it. Returns the new master.
    ///
    /// # Panics
    ///
    /// If this takes longer than 20 s.
    #[must_use]
    pub fn wait_for_failover(&self, slot: u16, old: usize) -> usize {
        let what = format!("a node other than {old} serves slot {slot}");
        let heir = until(&what, PATIENCE, || {
            self.view(self.witness()).master_of(slot).filter(|master| *master != old)
        });
        self.wait_until_serves(heir, slot);
        heir
    }

    /// Waits until all nodes that are up report a master for every slot, and until all replicas
    /// that are up follow their masters.
    ///
    /// # Panics
    ///
    /// If this takes longer than 20 s.
    pub fn wait_until_ok(&self) {
        for node in self.nodes.iter().filter(|node| node.is_up()) {
            node.wait_until_ready();
            let what = format!("node {} reports cluster_state:ok", node.address());
            until(&what, PATIENCE, || {
                let info = node.cmd(&["CLUSTER", "INFO"]);
                let says = |line| info.text().lines().any(|it| it == line);
                (says("cluster_state:ok") && says("cluster_slots_ok:16384")).then_some(())
            });
        }
    }

    /// Starts moving a slot to another master, step by step.
    ///
    /// # Panics
    ///
    /// If the slot has no master, or a node replies with an error.
    pub fn migration(&self, slot: u16, to: usize) -> Migration<'_> {
        Migration::begin(self, slot, self.master_of(slot), to)
    }

    /// Moves a slot with its keys to another master.
    ///
    /// # Panics
    ///
    /// If the slot has no master, or a node replies with an error.
    pub fn migrate(&self, slot: u16, to: usize) {
        let migration = self.migration(slot, to);
        while migration.move_keys(100) > 0 {}
        migration.finish();
    }

    /// Waits until all nodes that are up, including the master itself, report this master.
    fn wait_until_serves(&self, master: usize, slot: u16) {
        let what = format!("all nodes know that node {master} serves slot {slot}");
        until(&what, PATIENCE, || {
            let mut up = self.nodes.iter().filter(|node| node.is_up());
            up.all(|node| self.view(node).master_of(slot) == Some(master)).then_some(())
        });
    }

    fn witness(&self) -> &Redis {
        self.nodes.iter().find(|node| node.is_up()).expect("a node that is up")
    }

    fn view(&self, of: &Redis) -> View {
        View::parse(of.cmd(&["CLUSTER", "NODES"]).text(), &self.nodes)
    }
}

/// A failover takes about twice the node timeout, and longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
