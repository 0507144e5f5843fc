//! Derives a scenario from a seed, and runs it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::fault::Fault;
use crate::history::{History, PolicyKey};
use crate::limit::{Config, Group, Limit, Settings, any, once_in};
use crate::network::Road;
use crate::replica::Replica;
use crate::server::Server;
use crate::server::cluster::View;
use crate::traffic::Traffic;
use crate::world::World;
use crate::{Run, balance};

pub(crate) struct Scenario {
    seed: u64,
    rng: Rng,
    config: Arc<Config>,
    replicas: usize,
    shards: usize,
    latency: (u64, u64),
    faults: Vec<(Duration, Fault)>,
    lasts: Duration,
}

/// The time in which all replicas have to start.
const STARTS: Duration = Duration::from_secs(30);
/// The time after the last fault in which the fleet has to recover.
const RECOVERS: Duration = Duration::from_secs(5);
/// How long replicas have slept before the run, in microseconds. Slewing can reduce it.
const ASLEEP: u64 = 10_000_000;
/// The server's clock at the start, in microseconds.
pub(crate) const START: u64 = 1_700_000_000_000_000;

impl Scenario {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let replicas = if rng.u8(..10) == 0 { rng.usize(1..=20) } else { rng.usize(..=4).max(1) };
        let lasts = Duration::from_millis(rng.u64(500..2_500));
        // Most bugs need no Cluster.
        let shards = if rng.u8(..4) == 0 { rng.usize(2..=3) } else { 1 };
        // A reply is in transit for longer than the microseconds by which calls' times differ. In a
        // Cluster, a moving slot takes a call up to three round trips, and a request may wait for an
        // earlier call. Both are within the stores' timeout.
        let (least, spread) = if shards > 1 { (rng.u64(1..3), 2) } else { (rng.u64(1..5), 4) };
        let latency = (least, least + rng.u64(0..spread));
        let kinds = [Group::Plain, Group::Plain, Group::Leased, Group::Local];
        let groups = if rng.bool() { kinds.to_vec() } else { vec![any(&mut rng, &kinds)] };
        let is_leased = groups == [Group::Leased];
        let faults = Fault::several(&mut rng, (replicas, shards), is_leased, lasts);
        let mut limits = Vec::new();
        for index in 0..rng.usize(2..=4) {
            // A request beside a penalty is not leased.
            let is_penalty = index > 0 && once_in(&mut rng, if is_leased { 12 } else { 4 });
            let group = if is_penalty { Group::Penalty } else { any(&mut rng, &groups) };
            limits.push(Limit::random(&mut rng, index, group));
        }
        let traffic = Traffic::random(&mut rng, replicas, is_leased);
        let settings = if rng.bool() { Settings::default() } else { Settings::random(&mut rng) };
        let config = Arc::new(Config { limits, traffic, settings });
        Self { seed, rng, config, replicas, shards, latency, faults, lasts }
    }

    pub(crate) async fn run(mut self) -> Run {
        let roads = (0..self.replicas).map(|_| Road::new(self.latency)).collect();
        let (shown, view) = (START + self.rng.u64(..1_000_000_000), View::new(self.shards));
        let apart = [0, 0, 1_000_000][self.rng.usize(..3)];
        let servers = (0..2 * self.shards).map(|number| {
            let view = (self.shards > 1).then(|| view.clone());
            Server::new(number, shown + self.rng.u64(..=apart), view)
        });
        let servers = servers.collect();
        let seed = self.rng.u64(..);
        let history = History::new(self.config.settings.deny_cache);
        let (world, serving) = World::new(seed, (servers, view), roads, history);
        world.lock().note(format_args!(
            "seed {}: {} replicas, {} masters, latency {:?} ms, {:?}",
            self.seed, self.replicas, self.shards, self.latency, self.config.settings
        ));
        for limit in &self.config.limits {
            world.lock().note(format_args!("limit     {limit}"));
        }
        let asleep: Vec<_> = (0..self.replicas).map(|_| Arc::new(AtomicU64::new(ASLEEP))).collect();
        let mut replicas = Vec::new();
        for (number, asleep) in asleep.iter().enumerate() {
            let rng = self.rng.fork();
            let config = Arc::clone(&self.config);
            replicas.push(Replica::start(&world, number, config, Arc::clone(asleep), rng));
        }
        let started = timeout(STARTS, async {
            for replica in &replicas {
                replica.connected().await;
                // The first calls load the script, and take longer than requests may wait.
                replica.recovers().await;
            }
            for replica in &replicas {
                replica.counts(replicas.len()).await;
            }
        });
        if started.await.is_err() {
            let violation = format!("a replica has no decision {STARTS:?} after its start");
            world.lock().history.fail(everywhere(), violation);
            return finish(&world, self.seed, &self.config, replicas.len());
        }
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for replica in &replicas {
            for _ in 0..self.rng.usize(1..=self.config.traffic.clients) {
                tasks.spawn(replica.clone().requests(self.rng.fork(), start + self.lasts));
            }
        }
        let is_move = |fault: &Fault| matches!(fault, Fault::Move { .. });
        world.lock().has_faults = !self.faults.iter().all(|(_, fault)| is_move(fault));
        world.lock().has_moves = self.faults.iter().any(|(_, fault)| is_move(fault));
        for (at, fault) in self.faults {
            let (world, asleep) = (world.clone(), asleep.clone());
            tasks.spawn(async move {
                sleep_until(start + at).await;
                fault.happen(&world, &asleep).await;
            });
        }
        let copies = world.clone();
        let copying = tokio::spawn(async move {
            loop {
                copies.lock().servers.iter_mut().for_each(Server::copy_data);
                sleep(Duration::from_millis(700)).await;
            }
        });
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        copying.abort();
        for replica in &replicas {
            if timeout(RECOVERS, replica.recovers()).await.is_err() {
                let number = replica.number();
                let violation =
                    format!("replica {number} has no decision {RECOVERS:?} after the last fault");
                world.lock().history.fail(everywhere(), violation);
            }
        }
        let quiet = || world.lock().servers.iter().map(|it| it.clock.now()).collect::<Vec<_>>();
        let quiet = quiet();
        for replica in &replicas {
            replica.return_leases().await;
        }
        // Let blocked messages arrive, and replicas repeat reports whose calls failed.
        sleep(Duration::from_secs(1)).await;
        balance::check(&world, &self.config, &replicas, &quiet).await;
        let is_over = serving.iter().any(|server| server.is_finished());
        assert!(!is_over, "a simulated server panicked");
        finish(&world, self.seed, &self.config, replicas.len())
    }
}

fn finish(world: &World, seed: u64, config: &Config, replicas: usize) -> Run {
    let mut state = world.lock();
    let counts = state.history.counts;
    let failed = state.failed;
    // "Decisions are exact for any number of processes while a single Redis server works."
    if !state.has_faults && failed > 0 {
        let violation = format!("{failed} requests failed without a fault");
        state.history.fail(everywhere(), violation);
    }
    let limits = config.limits.iter();
    let logs: Vec<_> =
        limits.filter_map(|limit| limit.as_log(config.settings.share, replicas)).collect();
    state.history.check(&logs);
    let (violation, trace) = (state.history.violation.take(), std::mem::take(&mut state.trace));
    let mut reached = std::mem::take(&mut state.history.reached);
    state.servers.iter().for_each(|server| reached.add(&server.reached));
    Run { seed, violation, trace, counts, reached }
}

/// The key for violations that concern no single replica.
fn everywhere() -> PolicyKey {
    PolicyKey::default()
}
