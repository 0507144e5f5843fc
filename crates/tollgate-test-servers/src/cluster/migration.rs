//! Moves a slot from one master to another.

use super::Cluster;
use crate::client::Value;

/// A slot migration in progress. Each call is one step, so that a test can check every state.
///
/// After [`Cluster::migration`] the old master replies ASK for keys that it does not have, and
/// the new master accepts them after ASKING. [`move_keys`](Self::move_keys) moves the keys, and
/// [`finish`](Self::finish) announces the new master to all nodes. If this value is dropped
/// before that, the slot stays open, as after a crash of the tool that moves slots.
#[derive(Debug)]
#[must_use = "call finish() to end the migration"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl<'a> Migration<'a> {
    pub(super) fn begin(cluster: &'a Cluster, slot: u16, from: usize, to: usize) -> Self {
        let migration = Self { cluster, slot, from, to };
        // The new master first, so that it accepts a client as soon as the old one replies ASK.
        migration.set_slot(to, "IMPORTING", from);
        migration.set_slot(from, "MIGRATING", to);
        migration
    }

    /// The node that the slot leaves.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves up to `count` keys and returns how many it moved.
    ///
    /// # Panics
    ///
    /// If a node replies with an error.
    #[must_use = "the slot is empty when nothing was left to move"]
    pub fn move_keys(&self, count: usize) -> usize {
        let from = self.cluster.node(self.from);
        let (slot, count) = (self.slot.to_string(), count.to_string());
        let keys = from.cmd(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]);
        let keys = keys.list();
        if keys.is_empty() {
            return 0;
        }
        let to = self.cluster.node(self.to);
        let (ip, port) = (to.address().ip().to_string(), to.address().port().to_string());
        let mut command: Vec<&[u8]> =
            vec![b"MIGRATE", ip.as_bytes(), port.as_bytes(), b"", b"0", b"5000", b"REPLACE"];
        if let Some(password) = to.password() {
            command.extend([b"AUTH".as_slice(), password.as_bytes()]);
        }
        command.push(b"KEYS");
        command.extend(keys.iter().map(|key| match key {
            Value::Text(key) => key.as_slice(),
            other => panic!("not a key: {other:?}"),
        }));
        let answer = from.cmd(&command);
        // If all these keys have expired meanwhile, the reply is NOKEY, which is no error.
        assert_eq!(answer.error(), None, "slot {} cannot move", self.slot);
        keys.len()
    }

    /// Assigns the slot to its new master. Keys that were not moved are lost.
    ///
    /// # Panics
    ///
    /// If a node replies with an error.
    pub fn finish(self) {
        // The new master first: without this command it would not own the slot when the old
        // master gives the slot up. The other nodes need not wait for gossip.
        let others =
            (0..self.cluster.nodes().len()).filter(|node| ![self.to, self.from].contains(node));
        for node in [self.to, self.from].into_iter().chain(others) {
            let node_is_master = self.cluster.nodes()[node].is_up()
                && self.cluster.node(node).cmd(&["ROLE"]).list()[0].text() == "master";
            if node_is_master {
                self.set_slot(node, "NODE", self.to);
            }
        }
        self.cluster.wait_until_serves(self.to, self.slot);
    }

    fn set_slot(&self, at: usize, what: &str, node: usize) {
        let slot = self.slot.to_string();
        let id = self.cluster.node(node).cmd(&["CLUSTER", "MYID"]);
        let command = ["CLUSTER", "SETSLOT", &slot, what, id.text()];
        let answer = self.cluster.node(at).cmd(&command);
        assert_eq!(answer.error(), None, "node {at} rejects {command:?}");
    }
}
