//! Asking the nodes of a Cluster which of them has which slot.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::slots::{Part, parse};
use super::{Member, Place, Topology};
use crate::check::About;
use crate::connection::Network;
use crate::guard::Guard;
use crate::node::Node;
use crate::pace::Bounds;
use crate::random::Random;

/// A task asks for the map when there is reason to: a redirection, a lost connection, a slot without
/// a node. It asks two nodes at a time, so a node that is down delays no request, and its successor
/// is found as soon as the others know it.
#[derive(Debug)]
pub(super) struct Discovery {
    seeds: Vec<Place>,
    pub(super) connect: Connect,
    /// There is reason to ask.
    doubt: Notify,
    task: Mutex<Option<AbortHandle>>,
}

/// How a node is connected to.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) network: Network,
    pub(crate) bounds: Bounds,
    pub(crate) has_breaker: bool,
    pub(crate) about: About,
}

/// All who notice that something is wrong ask once. While no node answers, the pause is doubled.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The time after which the next nodes are asked, if two do not answer.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);
/// The time that the other node has after one answer, because it may have a later epoch.
const SECOND_ANSWER: Duration = Duration::from_millis(50);
/// A Cluster that does well is asked all the same: it may have grown or shrunk.
pub(super) const PERIOD: Duration = Duration::from_secs(30);

impl Discovery {
    pub(super) fn new(seeds: Vec<Place>, connect: Connect) -> Self {
        Self { seeds, connect, doubt: Notify::new(), task: Mutex::default() }
    }

    /// Begins to ask, and does so until told to stop.
    pub(super) fn begin(topology: &Arc<Topology>) {
        let task = tokio::spawn(run(Arc::clone(topology)));
        if let Some(discovery) = &topology.discovery {
            *discovery.task.lock() = Some(task.abort_handle());
        }
    }

    pub(super) fn end(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    pub(super) fn suspect(&self) {
        self.doubt.notify_one();
    }

    /// Asks nodes for the map, two at a time, until one of them has an answer. Of two answers the
    /// one of the later epoch counts. If no node has one, the error says why.
    async fn ask(&self, topology: &Topology, with_all: bool) -> Result<(), String> {
        let mut error = "there is no node".to_owned();
        for pair in self.in_turn(topology, with_all).chunks(2) {
            let mut asked = JoinSet::new();
            for member in pair {
                let member = Arc::clone(member);
                asked.spawn(async move { member.map().await });
            }
            let mut until = Instant::now() + LONGEST_ANSWER;
            let mut latest: Option<(u64, Vec<Part>)> = None;
            while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
                match answer {
                    Ok(Ok(map)) if latest.as_ref().is_none_or(|known| map.0 > known.0) => {
                        latest = Some(map);
                        until = until.min(Instant::now() + SECOND_ANSWER);
                    }
                    Ok(Err(reason)) => error = reason,
                    _ => {}
                }
            }
            if let Some((_, parts)) = latest {
                topology.adopt(&self.connect, &parts);
                return Ok(());
            }
        }
        Err(error)
    }

    /// The nodes in the order of requests: connected nodes first, and otherwise by chance, so that
    /// the processes of a fleet do not all ask the same node.
    fn in_turn(&self, topology: &Topology, with_all: bool) -> Vec<Arc<Member>> {
        if with_all || topology.map.read().members.is_empty() {
            // They stay until a node answers that does not know them.
            let replicas = topology.map.read().replicas.clone();
            for place in self.seeds.iter().chain(&replicas) {
                topology.named(place);
            }
        }
        let mut members: Vec<_> = topology.map.read().members.values().cloned().collect();
        // In an order that does not depend on the map.
        members.sort_unstable_by(|one, other| one.place.cmp(&other.place));
        let random = &self.connect.about.random;
        members.sort_by_cached_key(|member| (!member.node.is_connected(), random.next()));
        members
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
    pub(super) fn member(&self, place: &Place) -> Option<Arc<Member>> {
        let timeout = self.bounds.timeout;
        let guard = Guard::new(timeout, self.has_breaker);
        let connection = self.network.connect(Some(place), timeout).inspect_err(|error| {
            tracing::warn!(target: "tollgate", node = %place, %error, "a node cannot be used");
        });
        let node = Node::new(connection.ok()?, timeout, guard, self.about.clone());
        Some(Member::new(place.clone(), node, self.bounds))
    }
}

async fn run(topology: Arc<Topology>) {
    let Some(discovery) = &topology.discovery else { return };
    let random = &discovery.connect.about.random;
    let mut pause = BETWEEN_QUESTIONS;
    let mut was_told = false;
    let mut is_answered = true;
    loop {
        let began = Instant::now();
        let answer = discovery.ask(&topology, !is_answered).await;
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
        sleep_until(began + with_jitter(pause, random)).await;
        if is_answered {
            // Whether there was reason to or time is up, it asks again.
            let _ = timeout(with_jitter(PERIOD, random), discovery.doubt.notified()).await;
        }
    }
}

/// Up to a fifth more, so that processes that noticed the same do not ask together.
fn with_jitter(pause: Duration, random: &Random) -> Duration {
    pause + pause * ((random.next() % 200) as u32) / 1000
}
