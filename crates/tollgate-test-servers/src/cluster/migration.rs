//! A slot on its way from one master to another.

use super::Cluster;
use crate::client::Value;

/// A slot that moves, one step a call, so that a test can look at each.
///
/// From [`Cluster::migration`] on the old master answers ASK for keys that it no longer
/// has, and the new one takes them if asked to. Keys go with
/// [`move_keys`](Self::move_keys), and [`finish`](Self::finish) tells everybody. If it is
/// dropped before that, the slot stays open, as after a failure of who moves slots.
#[derive(Debug)]
#[must_use = "a slot stays on its way until finish()"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl<'a> Migration<'a> {
    pub(super) fn begin(cluster: &'a Cluster, slot: u16, from: usize, to: usize) -> Self {
        let migration = Self { cluster, slot, from, to };
        // The new one first, so that nobody is sent to it in vain.
        migration.set_slot(to, "IMPORTING", from);
        migration.set_slot(from, "MIGRATING", to);
        migration
    }

    /// The node that the slot leaves.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves up to so many keys and says how many there were.
    ///
    /// # Panics
    ///
    /// If a node refuses.
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
            other => panic!("a key was asked for: {other:?}"),
        }));
        let answer = from.cmd(&command);
        // A key may have expired meanwhile: then there is nothing to move.
        assert_eq!(answer.error(), None, "slot {} cannot move", self.slot);
        keys.len()
    }

    /// Gives the slot to its new master. Keys left behind are lost.
    ///
    /// # Panics
    ///
    /// If a node refuses.
    pub fn finish(self) {
        // Both who are concerned at once, first the new one: were it to miss this, the
        // slot would be nobody's. The others hear it from them, or here and now.
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
        assert_eq!(answer.error(), None, "node {at} refuses {command:?}");
    }
}
