//! Which server has which keys.

mod discovery;
mod query;
mod slots;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

use fred::util::redis_keyslot;
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use self::discovery::Connect;
use self::discovery::{Discovery, PERIOD};
use self::slots::{SLOTS, SlotRange};
use crate::client::host_port::HostPort;
use crate::client::node::Node;

/// A store's servers. A single server is a topology with a single node and slot.
///
/// fred has its own Cluster mode, which is not used: it blocks while any master is down, and pairs
/// replies with the wrong calls while a slot moves.
#[derive(Debug)]
pub(crate) struct Topology {
    map: RwLock<Map>,
    /// Notified when the map changes.
    news: Notify,
    /// `None` for a single server, which has all keys.
    discovery: Option<Discovery>,
}

#[derive(Debug, Default)]
struct Map {
    /// Masters, and nodes that a redirection or the URL names.
    nodes: HashMap<HostPort, Arc<Node>>,
    /// Connected to only when they become masters, or when no other node answers.
    replicas: HashSet<HostPort>,
    /// The node that has each slot.
    slots: Vec<Option<Arc<Node>>>,
    /// The nodes that have slots.
    masters: Vec<Arc<Node>>,
}

impl Topology {
    /// Creates a topology with a single server, which has all keys.
    pub(crate) fn single(node: Arc<Node>) -> Arc<Self> {
        let map = Map {
            nodes: HashMap::from([(node.address.clone(), Arc::clone(&node))]),
            slots: vec![Some(Arc::clone(&node))],
            masters: vec![node],
            replicas: HashSet::new(),
        };
        Arc::new(Self { map: RwLock::new(map), news: Notify::new(), discovery: None })
    }

    /// Creates a topology with no known node.
    fn undiscovered(discovery: Discovery) -> Self {
        let map = Map { slots: vec![None; SLOTS], ..Map::default() };
        Self { map: RwLock::new(map), news: Notify::new(), discovery: Some(discovery) }
    }

    /// Stops discovering nodes.
    pub(crate) fn end(&self) {
        let discovery = self.discovery.as_ref();
        if let Some(task) = discovery.and_then(|it| it.task.lock().take()) {
            task.abort();
        }
    }

    /// Whether this is a single server, which has all keys.
    pub(crate) const fn is_single(&self) -> bool {
        self.discovery.is_none()
    }

    /// Returns a key's slot.
    pub(crate) fn slot(&self, name: &[u8]) -> u16 {
        if self.is_single() { 0 } else { redis_keyslot(name) }
    }

    /// Returns the node that has a slot, if known.
    pub(crate) fn leader_now(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.read().slots.get(usize::from(slot))?.clone()
    }

    /// Waits until a node is known to have the slot.
    pub(crate) async fn leader(&self, slot: u16) -> Arc<Node> {
        loop {
            let mut news = pin!(self.news.notified());
            // Enable before reading the map, to avoid missing a change.
            news.as_mut().enable();
            if let Some(node) = self.leader_now(slot) {
                return node;
            }
            self.suspect();
            news.await;
        }
    }

    /// Returns for each slot the node that has it, if that is not `node`.
    pub(crate) fn others(
        &self,
        node: &Arc<Node>,
        slots: impl Iterator<Item = u16>,
    ) -> Vec<Option<Arc<Node>>> {
        if self.is_single() {
            return Vec::new();
        }
        let map = self.map.read();
        let leader = |slot: u16| map.slots.get(usize::from(slot))?.as_ref();
        let other = |slot| leader(slot).filter(|leader| !Arc::ptr_eq(leader, node)).cloned();
        slots.map(other).collect()
    }

    /// Triggers a query of the slot map, because a failure may mean that it changed.
    pub(crate) fn suspect(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.doubt.notify_one();
        }
    }

    /// Records a node's `MOVED` redirection.
    pub(crate) fn moved(&self, slot: u16, to: &HostPort) -> Option<Arc<Node>> {
        let node = self.named(to)?;
        let mut map = self.map.write();
        if let Some(leader) = map.slots.get_mut(usize::from(slot)) {
            *leader = Some(Arc::clone(&node));
        }
        if !map.masters.iter().any(|master| Arc::ptr_eq(master, &node)) {
            map.masters.push(Arc::clone(&node));
        }
        drop(map);
        self.suspect();
        self.news.notify_waiters();
        Some(node)
    }

    /// Returns the node that a redirection names. `None` if it cannot be connected to at all, or if
    /// this is not a Cluster.
    pub(crate) fn named(&self, address: &HostPort) -> Option<Arc<Node>> {
        let connect = &self.discovery.as_ref()?.connect;
        let known = self.map.read().nodes.get(address).cloned();
        let node = match known {
            Some(node) => node,
            None => {
                let mut map = self.map.write();
                match map.nodes.get(address) {
                    Some(node) => Arc::clone(node),
                    None => {
                        let node = connect.node(address)?;
                        map.nodes.insert(address.clone(), Arc::clone(&node));
                        node
                    }
                }
            }
        };
        *node.named_at.lock() = Instant::now();
        Some(node)
    }

    /// Waits until all masters are connected.
    pub(crate) async fn connected(&self) {
        loop {
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            let leaders = self.leaders();
            let absent = leaders.iter().find(|leader| !leader.connection.is_connected());
            match absent {
                // The master may never return, but then another node takes over its slots.
                Some(absent) => {
                    self.suspect();
                    tokio::select! {
                        biased;
                        () = absent.connection.connected() => {}
                        () = news => {}
                    }
                }
                None if leaders.is_empty() => news.await,
                None => return,
            }
        }
    }

    /// Returns all nodes that have slots.
    pub(crate) fn leaders(&self) -> Vec<Arc<Node>> {
        self.map.read().masters.clone()
    }

    /// Returns the number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.map.read().nodes.values().map(|node| node.lanes.lock().pace.queued()).sum()
    }

    /// Adopts the Cluster's slot map, and drops nodes that have left.
    fn adopt(&self, connect: &Connect, ranges: &[SlotRange]) {
        let now = Instant::now();
        let mut map = self.map.write();
        let mut nodes = HashMap::new();
        for address in ranges.iter().map(|range| &range.master) {
            let known = map.nodes.get(address).cloned();
            if let Some(node) = known.or_else(|| connect.node(address)) {
                nodes.insert(address.clone(), node);
            }
        }
        let masters = nodes.values().cloned().collect();
        let mut slots = vec![None; SLOTS];
        for range in ranges {
            for slot in range.slots.clone() {
                slots[usize::from(slot)] = nodes.get(&range.master).cloned();
            }
        }
        for (address, node) in &map.nodes {
            if now.saturating_duration_since(*node.named_at.lock()) < PERIOD {
                nodes.entry(address.clone()).or_insert_with(|| Arc::clone(node));
            }
        }
        let replicas = ranges.iter().flat_map(|range| range.replicas.iter().cloned()).collect();
        let before = std::mem::replace(&mut *map, Map { nodes, replicas, slots, masters });
        drop(map);
        // Dropped after unlocking, because this may close connections.
        drop(before);
        self.news.notify_waiters();
    }
}
