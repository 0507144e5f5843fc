//! Moves a slot between masters.

use super::Cluster;
use crate::client::Value;

/// A slot migration in progress. Each call performs a single step, so a test can check every
/// intermediate state.
///
/// After [`Cluster::migration`] the old master replies `ASK` for keys it no longer holds, and
/// the new master accepts them after `ASKING`. [`move_keys`](Self::move_keys) moves the keys, and
/// [`finish`](Self::finish) announces the new master to all nodes. Dropping this value earlier
/// leaves the slot open, like a crash of the resharding tool.
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
        // Prepare the new master first: it must accept clients as soon as the old master replies
        // ASK.
        migration.set_slot(to, "IMPORTING", from);
        migration.set_slot(from, "MIGRATING", to);
        migration
    }

    /// The old master.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves up to `count` keys and returns how many it moved.
    ///
    /// # Panics
    ///
    /// If a node replies with an error.
    #[must_use = "the slot is empty once all keys have moved"]
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
        // NOKEY, the reply if all of these keys have expired, is not an error.
        assert_eq!(answer.error(), None, "slot {} cannot move", self.slot);
        keys.len()
    }

    /// Assigns the slot to its new master. Keys that were not moved are lost.
    ///
    /// # Panics
    ///
    /// If a node replies with an error.
    pub fn finish(self) {
        // Notify the new master first: it must own the slot before the old master gives it up.
        // Notifying the other nodes too saves waiting for gossip.
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
