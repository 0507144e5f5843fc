//! Which node has which slot.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use fred::types::config::{Config, TlsConfig};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep_until, timeout, timeout_at};

use super::Place;
use super::slots::{Part, SLOTS, parse};
use crate::address::Address;
use crate::check::About;
use crate::guard::Guard;
use crate::node::Node;

/// The nodes of a Cluster and the slots that they have, as the Cluster itself said last.
///
/// A task asks for them when there is reason to: a redirection, a lost connection, a slot without
/// a node. It asks two nodes at a time, so a node that is down holds nobody up, and its successor
/// is found as soon as the others know it.
#[derive(Debug)]
pub(crate) struct Topology {
    seeds: Vec<Place>,
    connect: Connect,
    map: RwLock<Map>,
    /// There is reason to ask.
    doubt: Notify,
    /// There is something new in the map.
    news: Notify,
    watcher: Mutex<Option<AbortHandle>>,
}

/// How a node is connected to.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) address: Address,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) timeout: Duration,
    pub(crate) has_breaker: bool,
    pub(crate) about: About,
}

#[derive(Debug)]
struct Map {
    /// Masters, and nodes that a redirection or the URL names.
    members: HashMap<Place, Arc<Member>>,
    /// They get a connection once they lead, or once no other node answers.
    replicas: HashSet<Place>,
    /// Who has a slot.
    slots: Vec<Option<Arc<Member>>>,
    /// Who has any.
    masters: Vec<Arc<Member>>,
}

/// A node of the Cluster.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) node: Arc<Node>,
    /// Room for calls under way, those of all slots together.
    pub(crate) room: Arc<Semaphore>,
    /// When a redirection last led here. A node that slots are moving to may have none yet.
    named: Mutex<Instant>,
}

/// Half of what the client holds for a server before it refuses more.
const CALLS: usize = 128;
/// All who notice that something is wrong ask once. While no node answers, the pause is doubled.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The next nodes are asked if two do not answer for so long.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);
/// A Cluster that does well is asked all the same: it may have grown or shrunk.
const PERIOD: Duration = Duration::from_secs(30);

impl Topology {
    /// Begins to ask, and does so until told to stop.
    pub(super) fn watch(seeds: Vec<Place>, connect: Connect) -> Arc<Self> {
        let map = Map {
            members: HashMap::new(),
            replicas: HashSet::new(),
            slots: vec![None; SLOTS],
            masters: Vec::new(),
        };
        let topology = Arc::new(Self {
            seeds,
            connect,
            map: RwLock::new(map),
            doubt: Notify::new(),
            news: Notify::new(),
            watcher: Mutex::default(),
        });
        let watching = tokio::spawn(keep_asking(Arc::clone(&topology)));
        *topology.watcher.lock() = Some(watching.abort_handle());
        topology
    }

    pub(super) fn stop_watching(&self) {
        if let Some(watcher) = self.watcher.lock().take() {
            watcher.abort();
        }
    }

    /// Who has a slot, if somebody does.
    pub(crate) fn leader_now(&self, slot: u16) -> Option<Arc<Member>> {
        self.map.read().slots[usize::from(slot) % SLOTS].clone()
    }

    /// Whether others than who has this slot are well.
    pub(crate) fn is_well_without(&self, slot: u16) -> bool {
        let map = self.map.read();
        let leader = map.slots[usize::from(slot) % SLOTS].as_ref();
        map.masters.iter().any(|member| {
            !leader.is_some_and(|leader| Arc::ptr_eq(leader, member))
                && !member.node.guard().is_open()
                && member.node.is_connected()
        })
    }

    /// Who has a slot, as soon as somebody does.
    pub(crate) async fn leader(&self, slot: u16) -> Arc<Member> {
        loop {
            let mut news = pin!(self.news.notified());
            // From here on nothing is missed.
            news.as_mut().enable();
            if let Some(member) = self.leader_now(slot) {
                return member;
            }
            self.suspect();
            news.await;
        }
    }

    /// Something went wrong that might be known elsewhere by now.
    pub(crate) fn suspect(&self) {
        self.doubt.notify_one();
    }

    /// A node said that another has a slot.
    pub(crate) fn moved(&self, slot: u16, to: &Place) -> Option<Arc<Member>> {
        let member = self.named(to)?;
        if let Some(leader) = self.map.write().slots.get_mut(usize::from(slot)) {
            *leader = Some(Arc::clone(&member));
        }
        self.suspect();
        self.news.notify_waiters();
        Some(member)
    }

    /// The node that a redirection leads to. `None` if it cannot be connected to at all.
    pub(crate) fn named(&self, place: &Place) -> Option<Arc<Member>> {
        let known = self.map.read().members.get(place).cloned();
        let member = match known {
            Some(member) => member,
            None => {
                let mut map = self.map.write();
                match map.members.get(place) {
                    Some(member) => Arc::clone(member),
                    None => {
                        let member = self.connect.member(place)?;
                        map.members.insert(place.clone(), Arc::clone(&member));
                        member
                    }
                }
            }
        };
        *member.named.lock() = Instant::now();
        Some(member)
    }

    /// Waits until all slots that have a node have a connection to it.
    pub(super) async fn connected(&self) {
        loop {
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            let leaders = self.leaders();
            let absent = leaders.iter().find(|leader| !leader.node.is_connected());
            match absent {
                // It may never come: then another leads in its place some day.
                Some(absent) => {
                    self.suspect();
                    first(absent.node.connected(), news).await;
                }
                None if leaders.is_empty() => news.await,
                None => return,
            }
        }
    }

    /// All who have slots.
    pub(super) fn leaders(&self) -> Vec<Arc<Member>> {
        let map = self.map.read();
        let leaders: HashMap<_, _> =
            map.slots.iter().flatten().map(|leader| (&leader.place, leader)).collect();
        leaders.into_values().cloned().collect()
    }

    /// Asks nodes for the map, two at a time, until one of them has an answer. Of two answers the
    /// one of the later epoch counts. If no node has one, the error says why.
    async fn ask(&self, with_all: bool) -> Result<(), String> {
        let mut error = "there is none".to_owned();
        for pair in self.in_turn(with_all).chunks(2) {
            let mut asked = JoinSet::new();
            for member in pair {
                let member = Arc::clone(member);
                asked.spawn(async move { member.map().await });
            }
            let until = tokio::time::Instant::now() + LONGEST_ANSWER;
            let mut latest: Option<(u64, Vec<Part>)> = None;
            while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
                match answer {
                    Ok(Ok(map)) if latest.as_ref().is_none_or(|known| map.0 > known.0) => {
                        latest = Some(map);
                    }
                    Ok(Err(reason)) => error = reason,
                    _ => {}
                }
            }
            if let Some((_, parts)) = latest {
                self.adopt(&parts);
                return Ok(());
            }
        }
        Err(error)
    }

    /// The nodes in the order in which they are asked: connected ones first, and otherwise by
    /// chance, so that the processes of a fleet do not all ask the same node.
    fn in_turn(&self, with_all: bool) -> Vec<Arc<Member>> {
        if with_all || self.map.read().members.is_empty() {
            // They stay until a node answers that does not know them.
            let replicas = self.map.read().replicas.clone();
            for place in self.seeds.iter().chain(&replicas) {
                self.named(place);
            }
        }
        let mut members: Vec<_> = self.map.read().members.values().cloned().collect();
        let random = RandomState::default();
        members.sort_by_cached_key(|member| {
            (!member.node.is_connected(), random.hash_one(&member.place))
        });
        members
    }

    /// Takes over what the Cluster says, and parts with nodes that have left it.
    fn adopt(&self, parts: &[Part]) {
        let now = Instant::now();
        let mut map = self.map.write();
        let mut members = HashMap::new();
        for place in parts.iter().map(|part| &part.master) {
            let known = map.members.get(place).cloned();
            if let Some(member) = known.or_else(|| self.connect.member(place)) {
                members.insert(place.clone(), member);
            }
        }
        let mut slots = vec![None; SLOTS];
        for part in parts {
            for slot in part.slots.clone() {
                slots[usize::from(slot)] = members.get(&part.master).cloned();
            }
        }
        let mut masters: Vec<Arc<Member>> = Vec::new();
        for part in parts {
            if let Some(member) = members.get(&part.master)
                && !masters.iter().any(|known| Arc::ptr_eq(known, member))
            {
                masters.push(Arc::clone(member));
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
        // Not under the lock: some connections may end here.
        drop(before);
        self.news.notify_waiters();
    }
}

impl Member {
    /// The map that this node has, and its epoch. The user may lack the right to ask for the
    /// epoch: then it is zero.
    async fn map(&self) -> Result<(u64, Vec<Part>), String> {
        let answer = self.node.cluster_slots().await;
        let answer = answer.map_err(|error| format!("{}: {error}", self.place))?;
        let parts = parse(answer, &self.place.host);
        let parts = parts.ok_or_else(|| format!("{} knows of no slots", self.place))?;
        let epoch = self.node.cluster_epoch().await.unwrap_or_default();
        Ok((epoch, parts))
    }
}

impl Connect {
    fn member(&self, place: &Place) -> Option<Arc<Member>> {
        let guard = Guard::new(self.timeout, self.has_breaker);
        let node = Node::connect(self.config(place), self.timeout, guard, self.about.clone());
        let node = node.inspect_err(|error| {
            tracing::warn!(target: "tollgate", node = %place, %error, "a node cannot be used");
        });
        Some(Arc::new(Member {
            place: place.clone(),
            node: node.ok()?,
            room: Arc::new(Semaphore::new(CALLS)),
            named: Mutex::new(Instant::now()),
        }))
    }

    fn config(&self, place: &Place) -> Config {
        self.address.config_of(&place.host, place.port, self.tls.clone())
    }
}

/// Waits for whichever is over first.
async fn first(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => other.as_mut().poll(cx),
    })
    .await;
}

async fn keep_asking(topology: Arc<Topology>) {
    let mut pause = BETWEEN_QUESTIONS;
    let mut was_told = false;
    let mut is_answered = true;
    loop {
        let began = Instant::now();
        let answer = topology.ask(!is_answered).await;
        is_answered = answer.is_ok();
        match answer {
            Ok(()) => (pause, was_told) = (BETWEEN_QUESTIONS, false),
            Err(said) if !was_told => {
                was_told = true;
                tracing::warn!(
                    target: "tollgate",
                    said,
                    "no node of the redis cluster says who has its slots, asking on",
                );
            }
            Err(_) => pause = LONGEST_PAUSE.min(pause * 2),
        }
        sleep_until((began + with_jitter(pause)).into()).await;
        if is_answered {
            // Whether there was reason to or time is up, it asks again.
            let _ = timeout(with_jitter(PERIOD), topology.doubt.notified()).await;
        }
    }
}

/// Up to a fifth more, so that processes that noticed the same do not ask together.
fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::default().hash_one(Instant::now()) % 200;
    pause + pause * (random as u32) / 1000
}
