//! A Redis Cluster: a combiner for each slot, over the nodes that have the slots now.

mod place;
mod slots;
mod topology;

use std::sync::{Arc, OnceLock};

use fred::util::redis_keyslot;
use tollgate_core::BreakerState;

pub(crate) use self::place::Place;
use self::slots::SLOTS;
pub(crate) use self::topology::{Connect, Member, Topology};
use crate::check::RedisReport;
use crate::combiner::{Combiner, Shared};
use crate::pace::Bounds;
use crate::route::Route;
use crate::ticket::Line;

/// Carries requests to the nodes of a Cluster.
///
/// A call may only name keys of one slot, so what waits at the same moment is decided
/// together per slot. The client has a mode for Clusters of its own, which is not used:
/// it stands still while any master is down, and it pairs replies with the wrong calls
/// while a slot moves.
#[derive(Debug)]
pub(crate) struct Cluster {
    topology: Arc<Topology>,
    /// One for each slot, made when it is first used.
    combiners: Box<[OnceLock<Arc<Combiner>>]>,
    bounds: Bounds,
    shared: Arc<Shared>,
}

impl Cluster {
    /// Begins to look for the nodes, from those of `seeds` that answer. Must be called in
    /// a tokio runtime.
    pub(crate) fn new(
        seeds: Vec<Place>,
        connect: Connect,
        bounds: Bounds,
        shared: Arc<Shared>,
    ) -> Self {
        let topology = Topology::watch(seeds, connect);
        let combiners = std::iter::repeat_with(OnceLock::new).take(SLOTS).collect();
        Self { topology, combiners, bounds, shared }
    }

    /// Whether all masters have a connection.
    pub(crate) fn is_connected(&self) -> bool {
        let leaders = self.topology.leaders();
        !leaders.is_empty() && leaders.iter().all(|leader| leader.node.is_connected())
    }

    /// The state of the master that does worst.
    pub(crate) fn breaker(&self) -> BreakerState {
        let leaders = self.topology.leaders();
        let states = leaders.iter().map(|leader| leader.node.guard().state());
        states.max().unwrap_or(BreakerState::Closed)
    }

    pub(crate) fn reports(&self) -> Vec<RedisReport> {
        self.topology.leaders().iter().map(|leader| leader.node.report()).collect()
    }

    /// Who carries requests to the keys of a slot.
    pub(crate) fn combiner(&self, slot: u16) -> &Arc<Combiner> {
        self.combiners[usize::from(slot) % SLOTS].get_or_init(|| {
            let route = Route::Slot { topology: Arc::clone(&self.topology), slot };
            Arc::new(Combiner::new(route, self.bounds, Arc::clone(&self.shared)))
        })
    }

    /// Whether others than who has this slot are well.
    pub(crate) fn is_partial(&self, slot: u16) -> bool {
        self.topology.is_well_without(slot)
    }

    /// The number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.combiners.iter().filter_map(OnceLock::get).map(|combiner| combiner.queued()).sum()
    }

    /// Waits until all slots that have a node have a connection to it.
    pub(crate) async fn connected(&self) {
        self.topology.connected().await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.topology.stop_watching();
    }
}

/// The slot of a key.
pub(crate) fn slot(name: &[u8]) -> u16 {
    redis_keyslot(name)
}

/// Whether all charges are to keys of one slot.
pub(crate) fn is_one_slot(lines: &[Line]) -> bool {
    let Some((first, rest)) = lines.split_first() else { return true };
    // The policies of one subject are most of what is asked together, and share its braces.
    let slot_of_first = slot(&first.state);
    rest.iter().all(|line| slot(&line.state) == slot_of_first)
}
