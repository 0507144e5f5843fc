//! The simulation's shared state, and the server's task.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::history::History;
use crate::network::{Request, Road};
use crate::server::{Condition, Server};

#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The server's input.
    queue: mpsc::UnboundedSender<Request>,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) server: Server,
    /// The roads, by replica.
    pub(crate) roads: Vec<Road>,
    pub(crate) history: History,
    /// Notified when the server or a road changes.
    pub(crate) changed: Arc<Notify>,
    pub(crate) trace: String,
    start: Instant,
    numbers: u64,
}

impl World {
    /// Also returns the server's task.
    pub(crate) fn new(
        seed: u64,
        server: Server,
        roads: Vec<Road>,
        history: History,
    ) -> (Self, JoinHandle<()>) {
        let (queue, requests) = mpsc::unbounded_channel();
        let state = State {
            rng: Rng::with_seed(seed),
            server,
            roads,
            history,
            changed: Arc::default(),
            trace: String::new(),
            start: Instant::now(),
            numbers: 0,
        };
        let world = Self(Arc::new(Inner { state: Mutex::new(state), queue }));
        let serving = tokio::spawn(serve(world.clone(), requests));
        (world, serving)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Puts commands into the server's input.
    pub(crate) fn deliver(&self, request: Request) {
        // The server's task lives as long as the world.
        let _ = self.0.queue.send(request);
    }
}

impl State {
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
async fn serve(world: World, mut requests: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = requests.recv().await {
        let takes_time = world.lock().rng.u8(..8) == 0;
        if takes_time {
            sleep(Duration::from_millis(1)).await;
        }
        works(&world).await;
        let mut guard = world.lock();
        let state = &mut *guard;
        // This connection ended with an earlier process.
        if state.server.starts != request.start {
            continue;
        }
        let mut answers = SmallVec::new();
        for command in &request.commands {
            let done = state.server.execute(command);
            let replica = request.from.replica;
            if let Some(line) = state.history.executed(replica, command.name, &done) {
                state.note(line);
            }
            answers.push(done.answer);
        }
        let arrives = state.arrival(request.from.replica);
        request.answer(answers, arrives);
    }
}

/// Waits until the server works. A server that is down has no input, so its requests are dropped
/// when it starts.
async fn works(world: &World) {
    loop {
        let changed = {
            let state = world.lock();
            if state.server.condition == Condition::Works {
                return;
            }
            Arc::clone(&state.changed).notified_owned()
        };
        changed.await;
    }
}
