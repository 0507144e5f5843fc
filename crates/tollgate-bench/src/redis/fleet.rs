//! Many replicas over one Redis, or over a single-node Cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::prelude::Client;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota, RedisStore, StoreExt};

use crate::Failure;
use crate::redis::load::Ask;
use crate::redis::scripts::Lean;
use crate::redis::server::{self, Work, script_times};
use crate::redis::sides::{Limits, Tollgate, address, bucket, connected};
use crate::redis::turns::{Side, What, take_turns};
use crate::redis::{block_on, herd, overload};
use crate::report::{self, Cells, Table, Target};
use crate::rounds::Spread;

const METHOD: &str = "\
Each replica is a store with its own connection; all run in one process with two worker threads.
Requests arrive at a fixed rate and rotate over the replicas and 1 000 keys. `lean script each` is
the same number of plain clients with the lean script of the [redis](redis.md) page. Redis' time is
its processor time per decision. *Over-admission* is the amount by which all replicas together
exceed a limit of half of the requests on one key. The Cluster is the same redis-server with all
slots on one node. There, 512 tasks take turns on 100 000 keys, and each sends its next request after
an answer.

In the last table, replicas without requests lose their server for 3 s, and it returns without data
or scripts. The figures cover the time until every replica has checked the server.";

const SPAN: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(1);
const KEYS: u64 = 1_000;
/// Rounds per row.
pub(crate) const ROUNDS: usize = 3;

/// One Redis, or a Cluster.
struct Server {
    name: &'static str,
    url: String,
    /// The URL of its only node.
    node: String,
}

impl Server {
    async fn store(&self) -> Result<RedisStore, Failure> {
        connected(RedisStore::builder(&self.url)?.timeout(TIMEOUT)).await
    }

    async fn client(&self) -> Result<Client, Failure> {
        server::client(&self.node).await
    }
}

/// Measures, and writes the page unless there are fewer than [`ROUNDS`] rounds.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    let (single, cluster) = (server::start(), server::start_cluster());
    let servers = [
        Server { name: "one Redis", url: single.url(), node: single.url() },
        Server { name: "Cluster", url: cluster.url(), node: cluster.node(0).url() },
    ];
    let tables = block_on(async {
        let [rows, goals] = fleets(&servers, rounds).await?;
        let (scripts, one_node) = (scripts(&servers).await?, one_node(&servers, rounds).await?);
        Ok::<_, Failure>([rows, goals, scripts, one_node, herd::table(rounds).await?])
    })?;
    if rounds < ROUNDS {
        return report::show(&tables);
    }
    report::write("fleet", METHOD, &tables)
}

async fn fleets(servers: &[Server], rounds: usize) -> Result<[Table; 2], Failure> {
    let mut rows = Table::new(
        "Replicas over one Redis",
        "server | replicas | requests/s | answered | requests per call | Redis µs | \
         lean script's µs | p99, ms | over-admission",
    );
    let mut goals = Table::new(
        "Redis' time per decision in a fleet",
        "replicas | requests/s | what | compared with | × | target | met",
    );
    for server in servers {
        for replicas in [1, 10, 100] {
            for rate in [20_000, 40_000] {
                let mut fleet = Fleet::connect(server, replicas).await?;
                let mut seen = Vec::new();
                for _ in 0..rounds {
                    seen.push(fleet.round(rate).await?);
                }
                let over = fleet.over_admission(rate).await?;
                let of = |number: fn(&Seen) -> f64| Spread::of(seen.iter().map(number));
                let answered = format!("{:.1} %", of(|seen| seen.answered * 100.0));
                let micros = [(of(|seen| seen.ours * 1e6), 2), (of(|seen| seen.lean * 1e6), 2)];
                let p99 = of(|seen| seen.p99.as_secs_f64() * 1e3);
                let load: [&dyn Cells; 3] = [&server.name, &replicas, &rate];
                let batch = of(|seen| seen.batch);
                rows.row(&[&load[..], &[&answered, &batch, &micros, &p99, &over]].concat());
                let target = match (server.name, replicas, rate) {
                    ("one Redis", 100, 20_000) => Target::AtMost(1.1),
                    ("one Redis", 100, 40_000) => Target::AtMost(0.5),
                    _ => continue,
                };
                let ratio = (of(|seen| seen.ours / seen.lean), target);
                goals.row(&[&replicas, &rate, &"Redis' time", &"lean script each", &ratio]);
            }
        }
    }
    Ok([rows, goals])
}

/// The durations of all scripts so far, including the lean script.
async fn scripts(servers: &[Server]) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Duration of a script",
        "server | 99.9th percentile, ms | target | met | longest EVALSHA, ms | target | met | \
         longest EVAL, with compilation, ms | target | met",
    );
    for server in servers {
        let times = script_times(&server.client().await?).await?;
        let times = times.into_iter().zip([2.0, 5.0, 5.0]).map(|(time, target)| {
            [format!("{time:.2}").texts(), Target::AtMost(target).met(Spread::of([time])).texts()]
        });
        table.row(&[&server.name, &times.flatten().collect::<Vec<_>>()]);
    }
    Ok(table)
}

/// Compares the single-node Cluster with the single server, in turns.
async fn one_node(servers: &[Server], rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "A Cluster with one node",
        "keys | tasks | what | compared with | × | target | met",
    );
    let mut sides = Vec::new();
    for server in servers {
        let limits = Limits(vec![(bucket("fleet", 1)?, 100_000)]);
        let asks = Tollgate { store: server.store().await?, limits };
        sides.push(Side::new(server.name, asks, &server.client().await?));
    }
    take_turns(&mut sides, 512, 2 * rounds).await?;
    for (what, target) in [(What::Rate, Target::AtLeast(0.85)), (What::Redis, Target::None)] {
        let ratio = (sides[1].over(&sides[0], what), target);
        table.row(&[&["100 000", "512", what.name(), "one server"], &ratio]);
    }
    Ok(table)
}

struct Fleet {
    stores: Vec<RedisStore>,
    lean: Vec<Arc<Lean>>,
    redis: Client,
    policy: Policy,
}

/// A round's results.
struct Seen {
    /// The share of answered requests.
    answered: f64,
    /// Requests per call.
    batch: f64,
    /// Redis' processor time per decision, in seconds.
    ours: f64,
    lean: f64,
    p99: Duration,
}

impl Fleet {
    async fn connect(server: &Server, replicas: usize) -> Result<Self, Failure> {
        let (mut stores, mut lean) = (Vec::new(), Vec::new());
        for _ in 0..replicas {
            stores.push(server.store().await?);
            lean.push(Arc::new(Lean::new(server.client().await?, KEYS, 1).await?));
        }
        Ok(Self { stores, lean, redis: server.client().await?, policy: bucket("fleet", 1)? })
    }

    async fn round(&mut self, rate: u64) -> Result<Seen, Failure> {
        let totals = |stores: &[RedisStore]| {
            let stats = stores.iter().map(RedisStore::stats);
            stats.fold((0, 0), |sum, it| (sum.0 + it.calls, sum.1 + it.requests))
        };
        let (calls, requests) = totals(&self.stores);
        let before = Work::so_far(&self.redis).await?.seconds;
        let stores = &self.stores;
        let asked = timed(rate, |number| {
            let store = stores[number as usize % stores.len()].clone();
            let (policy, key) = (self.policy.clone(), Key::new(address(number * 7_919 % KEYS)));
            async move { store.charge(&policy, &key, Cost::ONE).await.is_ok() }
        });
        let mut waits = asked.await;
        let ours = Work::so_far(&self.redis).await?.seconds - before;
        let after = totals(&self.stores);
        let answered = waits.iter().flatten().count() as f64;
        let asked = waits.len() as f64;
        waits.retain(Option::is_some);
        waits.sort_unstable();
        let p99 = waits.get(waits.len() * 99 / 100).copied().flatten().unwrap_or_default();
        let before = Work::so_far(&self.redis).await?.seconds;
        let lean = &self.lean;
        let others = timed(rate, |number| {
            let lean = Arc::clone(&lean[number as usize % lean.len()]);
            async move { lean.ask(number * 7_919).await.is_ok() }
        });
        let others = others.await.iter().flatten().count() as f64;
        let lean = (Work::so_far(&self.redis).await?.seconds - before) / others;
        Ok(Seen {
            answered: answered / asked,
            batch: (after.1 - requests) as f64 / (after.0 - calls).max(1) as f64,
            ours: ours / answered,
            lean,
            p99,
        })
    }

    /// By how much all replicas together exceed a limit of half of the requests.
    async fn over_admission(&self, rate: u64) -> Result<u64, Failure> {
        let limit = rate * SPAN.as_secs() / 2;
        let name = format!("half {} {rate}", self.stores.len());
        let policy = Policy::fixed_window_counter(name, Quota::new(limit, Policy::MAX_WINDOW))?;
        let admitted = timed(rate, |number| {
            let (policy, stores) = (policy.clone(), &self.stores);
            let store = stores[number as usize % stores.len()].clone();
            async move {
                let verdict = store.charge(&policy, &Key::GLOBAL, Cost::ONE).await;
                verdict.is_ok_and(|verdict| verdict.is_admitted())
            }
        });
        let admitted = admitted.await.iter().flatten().count() as u64;
        Ok(admitted.saturating_sub(limit))
    }
}

/// Sends requests at a fixed rate, and returns the time that each took, or `None` if `ask` returned
/// false.
async fn timed<F>(rate: u64, ask: impl Fn(u64) -> F) -> Vec<Option<Duration>>
where
    F: Future<Output = bool> + Send + 'static,
{
    let all = overload::open_loop(rate as f64, SPAN, |number| {
        let (asked, request) = (Instant::now(), ask(number));
        async move { request.await.then(|| asked.elapsed()) }
    });
    all.await.into_iter().map(|(_, took)| took).collect()
}
