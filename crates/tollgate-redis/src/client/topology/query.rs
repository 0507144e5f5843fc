//! Queries nodes for the slot map.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Topology;
use super::discovery::{Connect, Discovery, PERIOD};
use super::slots::{SlotRange, parse};
use crate::client::host_port::HostPort;
use crate::client::node::Node;
use crate::random::Random;

/// The pause after a query that found another map, so many failures cause a single query.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// The pause doubles up to this limit while the nodes report the same map although calls fail. A
/// failover takes many seconds, and all processes query the remaining nodes meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The pause doubles up to this limit while no node answers.
const LONGEST_PAUSE_UNANSWERED: Duration = Duration::from_secs(2);
/// After this time without a reason to query, the next failure is a new one.
const QUIET: Duration = Duration::from_secs(3);
/// How long to wait for two nodes before querying the next two.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);
/// How long to wait for the second node after the first answer, because it may have a later epoch.
const SECOND_ANSWER: Duration = Duration::from_millis(50);

impl Topology {
    /// Starts to discover a Cluster's nodes from those `seeds` that answer. Must be called in a
    /// tokio runtime.
    pub(crate) fn cluster(seeds: Vec<HostPort>, connect: Connect) -> Arc<Self> {
        let topology = Arc::new(Self::undiscovered(Discovery::new(seeds, connect)));
        let task = tokio::spawn(run(Arc::clone(&topology)));
        if let Some(discovery) = &topology.discovery {
            *discovery.task.lock() = Some(task.abort_handle());
        }
        topology
    }
}

impl Discovery {
    /// Queries nodes for the slot map, two at a time, until one answers. If both answer, the later
    /// epoch wins. If no node answers, returns the reason.
    async fn ask(&self, topology: &Topology, with_all: bool) -> Result<Vec<SlotRange>, String> {
        let mut error = "there is no node".to_owned();
        for pair in self.in_turn(topology, with_all).chunks(2) {
            let mut asked = JoinSet::new();
            for node in pair {
                let node = Arc::clone(node);
                asked.spawn(async move { node.map().await });
            }
            let mut until = Instant::now() + LONGEST_ANSWER;
            let mut latest: Option<(u64, Vec<SlotRange>)> = None;
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
                return Ok(parts);
            }
        }
        Err(error)
    }

    /// Returns the nodes in query order: connected nodes first, and otherwise random, so a fleet's
    /// processes do not all query the same node.
    fn in_turn(&self, topology: &Topology, with_all: bool) -> Vec<Arc<Node>> {
        if with_all || topology.map.read().nodes.is_empty() {
            // Seeds and replicas remain in the map until a node answers with a map that omits them.
            let replicas = topology.map.read().replicas.clone();
            for address in self.seeds.iter().chain(&replicas) {
                topology.named(address);
            }
        }
        let mut nodes: Vec<_> = topology.map.read().nodes.values().cloned().collect();
        // Sorted first, because the map's order would make a seeded shuffle irreproducible.
        nodes.sort_unstable_by(|one, other| one.address.cmp(&other.address));
        let random = &self.connect.check.random;
        nodes.sort_by_cached_key(|node| (!node.connection.is_connected(), random.next()));
        nodes
    }
}

impl Node {
    /// Returns this node's slot map and its epoch, which is zero if the user may not query it.
    async fn map(&self) -> Result<(u64, Vec<SlotRange>), String> {
        let answer = self.command("CLUSTER", vec![Bytes::from_static(b"SLOTS")]).await;
        let answer = answer.map_err(|error| format!("{}: {error}", self.address))?;
        let parts = parse(answer, &self.address.host);
        let parts = parts.ok_or_else(|| format!("{} knows of no slots", self.address))?;
        let epoch = self.cluster_epoch().await.unwrap_or_default();
        Ok((epoch, parts))
    }
}

async fn run(topology: Arc<Topology>) {
    let Some(discovery) = &topology.discovery else { return };
    let random = &discovery.connect.check.random;
    let mut pause = SHORTEST_PAUSE;
    let mut known = Vec::new();
    let mut was_told = false;
    let mut is_answered = true;
    loop {
        let began = Instant::now();
        let answer = discovery.ask(&topology, !is_answered).await;
        is_answered = answer.is_ok();
        match answer {
            Ok(parts) => {
                was_told = false;
                // Compared with the last answer and not with the topology, which redirections
                // change too. Otherwise nodes that disagree would be queried without a pause.
                let is_same = std::mem::replace(&mut known, parts) == known;
                pause = if is_same { LONGEST_PAUSE.min(pause * 2) } else { SHORTEST_PAUSE };
            }
            Err(said) => {
                if !std::mem::replace(&mut was_told, true) {
                    tracing::warn!(
                        target: "tollgate",
                        said,
                        "no node of the redis cluster reports the slots, retrying",
                    );
                }
                pause = LONGEST_PAUSE_UNANSWERED.min(pause * 2);
            }
        }
        sleep_until(began + with_jitter(pause, random)).await;
        if is_answered {
            // Query again when there is a reason, or after the period.
            let _ = timeout(with_jitter(PERIOD, random), discovery.doubt.notified()).await;
            if began.elapsed() >= QUIET {
                pause = SHORTEST_PAUSE;
            }
        }
    }
}

/// Adds up to a half, so processes that noticed the same failure do not query together.
fn with_jitter(pause: Duration, random: &Random) -> Duration {
    pause + random.up_to(pause / 2)
}
