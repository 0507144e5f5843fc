//! Runs a user's limit over a fleet with faults.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate_core::{Charge, Cost, Key, Policy, Source, Store, StoreExt};
use tollgate_memory::MemoryStore;
use tollgate_redis::RedisStore;

use crate::fault::fail_over;
use crate::history::History;
use crate::network::{Access, Road};
use crate::replica::LocalClock;
use crate::scenario::START;
use crate::server::Server;
use crate::server::cluster::View;
use crate::world::World;

/// A fleet of replicas that share one limit over Redis.
///
/// The replicas run the Redis store's client code, and together they request about twice the quota
/// for a single key. A run takes four windows of simulated time, and as long as its requests need
/// to be decided. Small quotas are therefore faster to check.
#[derive(Clone, Debug)]
pub struct Fleet {
    policy: Policy,
    replicas: usize,
    fails_over: bool,
    skew: Duration,
    falls_back: bool,
    latency: Duration,
}

/// The run that admitted the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worst {
    /// The run's seed.
    pub seed: u64,
    /// The units that the fleet admitted in one window.
    pub units: u64,
    /// The requests in the run for which no decision was made.
    pub failed: u64,
}

pub(crate) const KEY: &str = "client";
/// How often the master sends its writes to its replica. A failover loses later writes.
const REPLICATES: Duration = Duration::from_millis(700);
/// The replicas' timeout, which is the default.
const TIMEOUT: Duration = Duration::from_millis(50);

impl Fleet {
    /// Creates a fleet with one replica and no faults.
    pub const fn new(policy: Policy) -> Self {
        let (skew, latency) = (Duration::ZERO, Duration::from_millis(1));
        Self { policy, replicas: 1, fails_over: false, skew, falls_back: false, latency }
    }

    /// Sets the number of replicas.
    pub const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Adds a failover: the new master lacks the last writes. In half of the runs, the old master is
    /// down before, and in the other half it still decides for up to 2 s.
    pub const fn failover(mut self) -> Self {
        self.fails_over = true;
        self
    }

    /// Sets the maximum difference between the old and the new master's clock.
    pub const fn clock_skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// Uses a local fallback while Redis fails, like `OnStoreError::Local`.
    pub const fn local_fallback(mut self) -> Self {
        self.falls_back = true;
        self
    }

    /// Sets the shortest one-way latency between a replica and Redis. Default: 1 ms. A message takes
    /// up to 2 ms longer, and a request's timeout is at least three round trips.
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Runs each seed, and returns the run that admitted the most units in any window of the
    /// policy's length. Without seeds, `units` is zero.
    ///
    /// # Panics
    /// If the code under test panics.
    pub fn worst(&self, seeds: Range<u64>) -> Worst {
        let runs = seeds.map(|seed| crate::paused(self.run(seed)));
        let none = Worst { seed: 0, units: 0, failed: 0 };
        runs.fold(none, |worst, run| if run.units > worst.units { run } else { worst })
    }

    /// Starts the servers and the replicas' stores.
    pub(crate) async fn connect(
        &self,
        rng: &mut Rng,
        timeout: Duration,
    ) -> (World, Vec<RedisStore>) {
        let servers = vec![Server::new(0, START, None), Server::new(1, START, None)];
        let least = self.latency.as_millis() as u64;
        let roads = (0..self.replicas).map(|_| Road::new((least, least + 2))).collect();
        let view = View::new(1);
        let (world, _) = World::new(rng.u64(..), (servers, view), roads, History::default());
        let stores = (0..self.replicas).map(|number| store(&world, number, rng, timeout));
        let stores: Vec<_> = stores.collect();
        for store in &stores {
            store.connected().await;
        }
        (world, stores)
    }

    async fn run(&self, seed: u64) -> Worst {
        let mut rng = Rng::with_seed(seed);
        let (world, stores) = self.connect(&mut rng, TIMEOUT.max(6 * self.latency)).await;
        let (window, start) = (Duration::from(self.policy.window()), Instant::now());
        let beside = Arc::<Mutex<Beside>>::default();
        let mut tasks = JoinSet::new();
        for store in stores {
            let (fleet, beside) = (self.clone(), Arc::clone(&beside));
            let rng = rng.fork();
            tasks.spawn(async move {
                let end = start + 4 * window;
                if fleet.falls_back {
                    let local = MemoryStore::builder().clock(LocalClock(start)).build();
                    fleet.requests(store.or_local(local), rng, end, beside).await;
                } else {
                    fleet.requests(store, rng, end, beside).await;
                }
            });
        }
        let copies = world.clone();
        let copying = tokio::spawn(async move {
            loop {
                copies.lock().servers.iter_mut().for_each(Server::copy_data);
                sleep(REPLICATES).await;
            }
        });
        if self.fails_over {
            let skew = i64::try_from(self.skew.as_micros()).expect("a short time");
            let (ahead, is_split) = (rng.i64(-skew..=skew), rng.bool());
            sleep_until(start + window + window.mul_f64(rng.f64())).await;
            let lasts = Duration::from_millis(rng.u64(100..2_000));
            fail_over(&world, self.replicas, (0, ahead), is_split, lasts).await;
        }
        tasks.join_all().await;
        copying.abort();
        let Beside { mut units, failed } = std::mem::take(&mut *beside.lock());
        units.extend(world.lock().history.charged(self.policy.name(), KEY));
        Worst { seed, units: most(units, window), failed }
    }

    /// Sends a replica's requests until `end`.
    async fn requests(
        &self,
        store: impl Store,
        mut rng: Rng,
        end: Instant,
        beside: Arc<Mutex<Beside>>,
    ) {
        let window = Duration::from(self.policy.window());
        // The fleet requests twice the quota on average.
        let pause = window.div_f64(self.policy.capacity() as f64) * self.replicas as u32;
        let mut requests = JoinSet::new();
        while Instant::now() < end {
            sleep(pause.mul_f64(rng.f64())).await;
            let (store, policy, beside) = (store.clone(), self.policy.clone(), Arc::clone(&beside));
            requests.spawn(async move {
                let key = Key::new(KEY);
                let verdict = store.decide(&[Charge::new(&policy, &key, Cost::ONE)]).await;
                let mut beside = beside.lock();
                match verdict {
                    Err(_) => beside.failed += 1,
                    Ok(verdict) => {
                        let is_beside = matches!(verdict.source(), Source::Lease | Source::Local);
                        if is_beside && verdict.is_admitted() {
                            beside.units.push((Instant::now(), 1));
                        }
                    }
                }
            });
        }
        requests.join_all().await;
    }
}

/// Admissions that servers do not see.
#[derive(Debug, Default)]
struct Beside {
    /// The units that leases and local fallbacks admitted, and when.
    units: Vec<(Instant, u64)>,
    failed: u64,
}

fn store(world: &World, number: usize, rng: &mut Rng, timeout: Duration) -> RedisStore {
    let access = Arc::new(Access { world: world.clone(), replica: number });
    let store = RedisStore::builder("redis://simulated").expect("a URL");
    let store = store.simulated(access, Arc::new(AtomicU64::new(0))).seed(rng.u64(..));
    let store = store.timeout(timeout).connect().expect("a runtime");
    let any = Policy::concurrent_requests(KEY, 1, Duration::from_secs(1)).expect("builds");
    world.lock().history.label(&store.name_of(&any, &Key::new(KEY)), KEY);
    store
}

/// Returns the most units in any window.
fn most(mut units: Vec<(Instant, u64)>, window: Duration) -> u64 {
    units.sort_unstable();
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, cost) in &units {
        sum += cost;
        while units[first].0 + window <= *at {
            sum -= units[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Quota, Verdict};

    use super::*;
    use crate::fault::pause;

    const REPLICAS: usize = 300;

    async fn fleet(timeout: Duration) -> (Policy, World, Vec<RedisStore>) {
        let policy = Policy::token_bucket("p", Quota::per_second(1).burst(1_000_000));
        let policy = policy.expect("builds");
        let fleet = Fleet::new(policy.clone()).replicas(REPLICAS);
        let (world, stores) = fleet.connect(&mut Rng::with_seed(0), timeout).await;
        (policy, world, stores)
    }

    /// All replicas send a request at the same time, and the server has lost the script.
    #[test]
    fn few_replicas_load_a_flushed_script() {
        crate::paused(async {
            let (policy, world, stores) = fleet(Duration::from_secs(1)).await;
            sleep(Duration::from_secs(2)).await;
            let loads = || world.lock().servers[0].commands.get("EVAL").copied().unwrap_or(0);
            let before = loads();
            world.lock().servers[0].knows_script = false;
            let requests = stores.into_iter().map(|store| {
                let policy = policy.clone();
                async move { store.charge(&policy, &Key::new(KEY), Cost::ONE).await }
            });
            let answers = requests.collect::<JoinSet<_>>().join_all().await;
            let failed = answers.iter().find_map(|it| it.as_ref().err());
            assert!(failed.is_none(), "{failed:?}");
            let loads = loads() - before;
            println!("{loads}");
            assert!((1..=REPLICAS as u64 / 4).contains(&loads), "{loads}");
        });
    }

    /// Two processes request far more than the quota, while the server pauses for 80 ms twice per
    /// second, as on a busy machine. Returns what they admit within a window: all, and locally.
    fn admitted_with_pauses(policy: &Policy, is_local: bool) -> (u64, u64) {
        crate::paused(async {
            let fleet = Fleet::new(policy.clone()).replicas(2);
            let (world, stores) = fleet.connect(&mut Rng::with_seed(0), TIMEOUT).await;
            let start = Instant::now();
            let pauses = tokio::spawn(async move {
                loop {
                    sleep(Duration::from_millis(420)).await;
                    pause(&world, 0, Duration::from_millis(80)).await;
                }
            });
            let mut requests = JoinSet::new();
            for store in stores {
                let local = MemoryStore::builder().clock(LocalClock(start)).build();
                let fallback = store.clone().or_local(local);
                for number in 0..3_000 {
                    let (store, fallback, policy) =
                        (store.clone(), fallback.clone(), policy.clone());
                    requests.spawn(async move {
                        sleep_until(start + number * Duration::from_millis(3)).await;
                        let key = Key::new(KEY);
                        let charge = [Charge::new(&policy, &key, Cost::ONE)];
                        if is_local {
                            fallback.decide(&charge).await
                        } else {
                            store.decide(&charge).await
                        }
                    });
                }
            }
            let verdicts = requests.join_all().await.into_iter().filter_map(Result::ok);
            let admitted: Vec<_> = verdicts.filter(Verdict::is_admitted).collect();
            pauses.abort();
            let local = admitted.iter().filter(|verdict| verdict.source() == Source::Local);
            (admitted.len() as u64, local.count() as u64)
        })
    }

    #[test]
    fn short_pauses_admit_at_most_two_quotas() {
        const QUOTA: u64 = 1_000;
        let policy = Policy::sliding_window_log("p", Quota::per_minute(QUOTA)).expect("builds");
        let (all, local) = admitted_with_pauses(&policy, true);
        assert!(local > QUOTA / 10 && all - local <= QUOTA, "{local} of {all} locally");
        assert!(all > QUOTA && all <= 2 * QUOTA, "{all}");
        let (all, _) = admitted_with_pauses(&policy, false);
        assert!(all <= QUOTA && all > QUOTA * 9 / 10, "{all}");
    }

    /// A fleet loses its server, and three seconds later another server takes over.
    #[test]
    fn new_server_is_not_overwhelmed() {
        crate::paused(async {
            let (policy, world, stores) = fleet(TIMEOUT).await;
            let mut tasks = JoinSet::new();
            for store in stores {
                let (policy, mut rng) = (policy.clone(), world.lock().rng.fork());
                tasks.spawn(async move {
                    loop {
                        sleep(Duration::from_secs(1).mul_f64(2.0 * rng.f64())).await;
                        let _ = store.charge(&policy, &Key::new(KEY), Cost::ONE).await;
                    }
                });
            }
            sleep(Duration::from_secs(2)).await;
            fail_over(&world, REPLICAS, (0, 0), false, Duration::from_secs(3)).await;
            let commands = |name| world.lock().servers[1].commands.get(name).copied().unwrap_or(0);
            let mut tenths = Vec::new();
            for _ in 0..11 {
                let before = commands("CONFIG");
                sleep(Duration::from_millis(100)).await;
                tenths.push(commands("CONFIG") - before);
            }
            let all: u64 = world.lock().servers[1].commands.values().sum();
            let loads = commands("EVAL");
            println!("{tenths:?} {loads} {all}: {:?}", world.lock().servers[1].commands);
            // Each replica checks the server within a second. A replica whose first calls time out
            // connects again.
            let checks = tenths.iter().sum::<u64>();
            assert!((REPLICAS as u64..=REPLICAS as u64 * 21 / 20).contains(&checks), "{checks}");
            assert!(tenths.iter().all(|count| *count <= REPLICAS as u64 / 4), "{tenths:?}");
            assert!(loads <= 10, "{loads}");
            assert!(all <= 15 * REPLICAS as u64, "{all}");
        });
    }
}
