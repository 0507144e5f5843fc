//! Which node has which slot.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use fred::types::config::{Config, TlsConfig};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep_until, timeout};

use super::Place;
use super::slots::{Part, SLOTS, parse};
use crate::address::Address;
use crate::check::About;
use crate::guard::Guard;
use crate::node::Node;

/// The nodes of a Cluster and the slots that they have, as the Cluster itself said last.
///
/// A task asks all nodes at once and believes the first that answers, when there is
/// reason to: a redirection, a failure, a slot that nobody has. So a node that is down
/// holds nobody up, and its successor is found as soon as the others know it.
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
    /// Masters and replicas: those are asked too, as they may be all that is left.
    members: HashMap<Place, Arc<Member>>,
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
/// All who notice that something is wrong ask once.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);
/// A Cluster that does well is asked all the same: it may have grown or shrunk.
const PERIOD: Duration = Duration::from_secs(30);

impl Topology {
    /// Begins to ask, and does so until told to stop.
    pub(super) fn watch(seeds: Vec<Place>, connect: Connect) -> Arc<Self> {
        let map = Map { members: HashMap::new(), slots: vec![None; SLOTS], masters: Vec::new() };
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

    /// Asks all nodes, and believes the first that makes sense. If none does, it says what
    /// one of them said instead.
    async fn ask(&self, with_seeds: bool) -> Result<(), String> {
        let mut said = "there is none".to_owned();
        let mut answers = JoinSet::new();
        for member in self.everybody(with_seeds) {
            answers.spawn(async move {
                let answer = member.node.cluster_slots().await;
                (member, answer)
            });
        }
        while let Some(answer) = answers.join_next().await {
            let Ok((member, answer)) = answer else { continue };
            match answer.map(|answer| parse(answer, &member.place.host)) {
                Ok(Some(parts)) => {
                    self.adopt(&parts);
                    return Ok(());
                }
                Ok(None) => said = format!("{} knows of no slots", member.place),
                Err(error) => said = format!("{}: {error}", member.place),
            }
        }
        Err(said)
    }

    fn everybody(&self, with_seeds: bool) -> Vec<Arc<Member>> {
        if with_seeds || self.map.read().members.is_empty() {
            // They stay until somebody answers who is not told of them.
            for seed in &self.seeds {
                self.named(seed);
            }
        }
        self.map.read().members.values().cloned().collect()
    }

    /// Takes over what the Cluster says, and parts with nodes that have left it.
    fn adopt(&self, parts: &[Part]) {
        let now = Instant::now();
        let mut map = self.map.write();
        let mut members = HashMap::new();
        for place in parts.iter().flat_map(|part| part.replicas.iter().chain([&part.master])) {
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
        let before = std::mem::replace(&mut *map, Map { members, slots, masters });
        drop(map);
        // Not under the lock: some connections may end here.
        drop(before);
        self.news.notify_waiters();
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
    let mut was_answered = true;
    let mut was_told = false;
    loop {
        let began = Instant::now();
        let answer = topology.ask(!was_answered).await;
        was_answered = answer.is_ok();
        match answer {
            Ok(()) => was_told = false,
            Err(said) if !was_told => {
                was_told = true;
                tracing::warn!(
                    target: "tollgate",
                    said,
                    "no node of the redis cluster says who has its slots, asking on",
                );
            }
            Err(_) => {}
        }
        sleep_until((began + BETWEEN_QUESTIONS).into()).await;
        if was_answered {
            // Whether there was reason to or time is up, it asks again.
            let _ = timeout(PERIOD, topology.doubt.notified()).await;
        }
    }
}
