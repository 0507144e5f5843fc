//! Which server has which keys.

mod discovery;
mod member;
mod place;
mod query;
mod slots;

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fred::util::redis_keyslot;
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use self::discovery::Connect;
use self::discovery::{Discovery, PERIOD};
pub(crate) use self::member::Member;
pub(crate) use self::place::Place;
use self::slots::{Part, SLOTS};
use crate::node::Node;
use crate::pace::Bounds;

/// A store's servers. A single server is a topology with a single member and slot.
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
    members: HashMap<Place, Arc<Member>>,
    /// Connected to only when they become masters, or when no other node answers.
    replicas: HashSet<Place>,
    /// The member that has each slot.
    slots: Vec<Option<Arc<Member>>>,
    /// The members that have slots.
    masters: Vec<Arc<Member>>,
}

impl Topology {
    /// Creates a topology with a single server, which has all keys.
    pub(crate) fn single(place: Place, node: Arc<Node>, bounds: Bounds) -> Arc<Self> {
        let member = Member::new(place.clone(), node, bounds);
        let map = Map {
            members: HashMap::from([(place, Arc::clone(&member))]),
            slots: vec![Some(Arc::clone(&member))],
            masters: vec![member],
            replicas: HashSet::new(),
        };
        Arc::new(Self { map: RwLock::new(map), news: Notify::new(), discovery: None })
    }

    /// Starts to discover a Cluster's nodes from those `seeds` that answer. Must be called in a
    /// tokio runtime.
    pub(crate) fn cluster(seeds: Vec<Place>, connect: Connect) -> Arc<Self> {
        let map = Map { slots: vec![None; SLOTS], ..Map::default() };
        let discovery = Some(Discovery::new(seeds, connect));
        let topology = Arc::new(Self { map: RwLock::new(map), news: Notify::new(), discovery });
        topology.discover();
        topology
    }

    /// Stops discovering nodes.
    pub(crate) fn end(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.end();
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

    /// Returns the member that has a slot, if known.
    pub(crate) fn leader_now(&self, slot: u16) -> Option<Arc<Member>> {
        self.map.read().slots.get(usize::from(slot))?.clone()
    }

    /// Waits until a member is known to have the slot.
    pub(crate) async fn leader(&self, slot: u16) -> Arc<Member> {
        loop {
            let mut news = pin!(self.news.notified());
            // Enable before reading the map, to avoid missing a change.
            news.as_mut().enable();
            if let Some(member) = self.leader_now(slot) {
                return member;
            }
            self.suspect();
            news.await;
        }
    }

    /// Returns for each slot the member that has it, if that is not `member`.
    pub(crate) fn others(
        &self,
        member: &Arc<Member>,
        slots: impl Iterator<Item = u16>,
    ) -> Vec<Option<Arc<Member>>> {
        if self.is_single() {
            return Vec::new();
        }
        let map = self.map.read();
        let leader = |slot: u16| map.slots.get(usize::from(slot))?.as_ref();
        let other = |slot| leader(slot).filter(|leader| !Arc::ptr_eq(leader, member)).cloned();
        slots.map(other).collect()
    }

    /// Triggers a query of the slot map, because a failure may mean that it changed.
    pub(crate) fn suspect(&self) {
        if let Some(discovery) = &self.discovery {
            discovery.suspect();
        }
    }

    /// Records a node's `MOVED` redirection.
    pub(crate) fn moved(&self, slot: u16, to: &Place) -> Option<Arc<Member>> {
        let member = self.named(to)?;
        let mut map = self.map.write();
        if let Some(leader) = map.slots.get_mut(usize::from(slot)) {
            *leader = Some(Arc::clone(&member));
        }
        if !map.masters.iter().any(|master| Arc::ptr_eq(master, &member)) {
            map.masters.push(Arc::clone(&member));
        }
        drop(map);
        self.suspect();
        self.news.notify_waiters();
        Some(member)
    }

    /// Returns the node that a redirection names. `None` if it cannot be connected to at all, or if
    /// this is not a Cluster.
    pub(crate) fn named(&self, place: &Place) -> Option<Arc<Member>> {
        let connect = &self.discovery.as_ref()?.connect;
        let known = self.map.read().members.get(place).cloned();
        let member = match known {
            Some(member) => member,
            None => {
                let mut map = self.map.write();
                match map.members.get(place) {
                    Some(member) => Arc::clone(member),
                    None => {
                        let member = connect.member(place)?;
                        map.members.insert(place.clone(), Arc::clone(&member));
                        member
                    }
                }
            }
        };
        *member.named.lock() = Instant::now();
        Some(member)
    }

    /// Waits until all masters are connected.
    pub(crate) async fn connected(&self) {
        loop {
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            let leaders = self.leaders();
            let absent = leaders.iter().find(|leader| !leader.node.is_connected());
            match absent {
                // The master may never return, but then another node takes over its slots.
                Some(absent) => {
                    self.suspect();
                    first(absent.node.connected(), news).await;
                }
                None if leaders.is_empty() => news.await,
                None => return,
            }
        }
    }

    /// Returns all members that have slots.
    pub(crate) fn leaders(&self) -> Vec<Arc<Member>> {
        self.map.read().masters.clone()
    }

    /// Returns the number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.map.read().members.values().map(|member| member.lanes.lock().queued()).sum()
    }

    /// Adopts the Cluster's slot map, and drops nodes that have left.
    fn adopt(&self, connect: &Connect, parts: &[Part]) {
        let now = Instant::now();
        let mut map = self.map.write();
        let mut members = HashMap::new();
        for place in parts.iter().map(|part| &part.master) {
            let known = map.members.get(place).cloned();
            if let Some(member) = known.or_else(|| connect.member(place)) {
                members.insert(place.clone(), member);
            }
        }
        let masters = members.values().cloned().collect();
        let mut slots = vec![None; SLOTS];
        for part in parts {
            for slot in part.slots.clone() {
                slots[usize::from(slot)] = members.get(&part.master).cloned();
            }
        }
        for (place, member) in &map.members {
            if now.saturating_duration_since(*member.named.lock()) < PERIOD {
                members.entry(place.clone()).or_insert_with(|| Arc::clone(member));
            }
        }
        let replicas = parts.iter().flat_map(|part| part.replicas.iter().cloned()).collect();
        let before = std::mem::replace(&mut *map, Map { members, replicas, slots, masters });
        drop(map);
        // Dropped after unlocking, because this may close connections.
        drop(before);
        self.news.notify_waiters();
    }
}

/// Waits until either future completes.
async fn first(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => other.as_mut().poll(cx),
    })
    .await;
}
