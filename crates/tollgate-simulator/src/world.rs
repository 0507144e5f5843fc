//! The simulation's shared state, and the servers' tasks.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate_redis::simulation::slot;

use crate::history::History;
use crate::network::{Request, Road};
use crate::server::cluster::{Member, View};
use crate::server::{Condition, Server};

#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The servers' input.
    queues: Vec<mpsc::UnboundedSender<Request>>,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    /// A shard's master and its replica are neighbours.
    pub(crate) servers: Vec<Server>,
    /// Which servers are masters. The servers themselves may have older views.
    pub(crate) view: View,
    /// Whether slots are moving, or masters are replaced.
    pub(crate) is_changing: bool,
    /// The roads, by replica.
    pub(crate) roads: Vec<Road>,
    /// Whether the run has faults other than moving slots.
    pub(crate) has_faults: bool,
    /// Whether slots move in the run.
    pub(crate) has_moves: bool,
    /// Requests that would only fail due to a fault.
    pub(crate) failed: u64,
    pub(crate) history: History,
    /// Notified when the server or a road changes.
    pub(crate) changed: Arc<Notify>,
    pub(crate) trace: String,
    start: Instant,
    numbers: u64,
}

impl World {
    /// Also returns the servers' tasks.
    pub(crate) fn new(
        seed: u64,
        (servers, view): (Vec<Server>, View),
        roads: Vec<Road>,
        history: History,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let (queues, inputs): (Vec<_>, Vec<_>) =
            servers.iter().map(|_| mpsc::unbounded_channel()).unzip();
        let state = State {
            rng: Rng::with_seed(seed),
            servers,
            view,
            is_changing: false,
            roads,
            has_faults: false,
            has_moves: false,
            failed: 0,
            history,
            changed: Arc::default(),
            trace: String::new(),
            start: Instant::now(),
            numbers: 0,
        };
        let world = Self(Arc::new(Inner { state: Mutex::new(state), queues }));
        let serving = inputs.into_iter().enumerate();
        let serving =
            serving.map(|(number, input)| tokio::spawn(serve(world.clone(), number, input)));
        let serving = serving.collect();
        (world, serving)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Puts commands into their server's input.
    pub(crate) fn deliver(&self, request: Request) {
        // The server's task lives as long as the world.
        let _ = self.0.queues[request.server].send(request);
    }
}

impl State {
    /// Returns the master that has this Redis key.
    pub(crate) fn owner(&mut self, name: &[u8]) -> &mut Server {
        let slot = slot(name);
        let owner = self.view.owner(slot);
        let server = &self.servers[owner];
        let moves_to = server.member.as_ref().and_then(|member| member.migrating.get(&slot));
        let owner = moves_to.copied().filter(|_| !server.has(name)).unwrap_or(owner);
        &mut self.servers[owner]
    }

    /// All servers' clocks start or stop to run slower than the replicas' clocks.
    pub(crate) fn lag_all(&mut self) {
        (0..self.servers.len()).for_each(|server| self.history.lag(server));
    }

    /// Whether two servers' clocks differ.
    pub(crate) fn are_apart(&self, one: usize, other: usize) -> bool {
        self.servers[one].clock.now() != self.servers[other].clock.now()
    }

    pub(crate) fn member(&mut self, server: usize) -> &mut Member {
        self.servers[server].member.as_mut().expect("a Cluster's server")
    }

    /// Writes a line into the trace.
    pub(crate) fn note(&mut self, line: impl std::fmt::Display) {
        let at = self.start.elapsed().as_millis();
        let _ = writeln!(self.trace, "{:>7}.{:03} s  {line}", at / 1_000, at % 1_000);
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns when a message that is sent now arrives.
    pub(crate) fn arrival(&mut self, replica: usize) -> Instant {
        let Road { latency: (least, most), delay, .. } = self.roads[replica];
        Instant::now() + Duration::from_millis(delay + self.rng.u64(least..=most))
    }
}

/// Executes commands in order of arrival.
async fn serve(world: World, number: usize, mut requests: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = requests.recv().await {
        let takes_time = world.lock().rng.u8(..8) == 0;
        if takes_time {
            sleep(Duration::from_millis(1)).await;
        }
        works(&world, number).await;
        let mut guard = world.lock();
        let state = &mut *guard;
        // This connection ended with an earlier process.
        let server = &mut state.servers[number];
        if server.starts != request.start {
            continue;
        }
        let (mut answers, mut lines) = (SmallVec::new(), Vec::new());
        let mut is_asking = false;
        for command in &request.commands {
            let done = server.execute(command, is_asking);
            is_asking = command.name == "ASKING";
            let (replica, name) = (request.from.replica, command.name);
            lines.extend(state.history.executed((replica, number), name, &done));
            answers.push(done.answer);
        }
        lines.into_iter().for_each(|line| state.note(line));
        let arrives = state.arrival(request.from.replica);
        request.answer(answers, arrives);
    }
}

/// Waits until the server works. A server that is down has no input, so its requests are dropped
/// when it starts.
async fn works(world: &World, number: usize) {
    loop {
        let changed = {
            let state = world.lock();
            if state.servers[number].condition == Condition::Works {
                return;
            }
            Arc::clone(&state.changed).notified_owned()
        };
        changed.await;
    }
}
