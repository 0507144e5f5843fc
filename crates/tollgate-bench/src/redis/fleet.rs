//! Many replicas over one Redis, or over a single-node Cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::prelude::Client;
use tokio::task::JoinSet;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota, RedisStore, StoreExt};

use crate::Failure;
#[cfg(unix)]
use crate::redis::herd;
use crate::redis::load::{self, Ask};
use crate::redis::scripts::Lean;
use crate::redis::server::{Server, processor_time, script_times};
use crate::redis::sides::{Limits, Tollgate, address, bucket};
use crate::report::{self, Table, Target};
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

/// Measures, and writes the page unless there are fewer than [`ROUNDS`] rounds.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let (single, cluster) = (Server::start()?, Server::start_cluster()?);
    let tables = runtime.block_on(async {
        let (rows, goals) = fleets(&single, &cluster, rounds).await?;
        let scripts = scripts(&single, &cluster).await?;
        let mut tables = vec![rows, goals, scripts, one_node(&single, &cluster, rounds).await?];
        #[cfg(unix)]
        tables.push(herd::table(rounds).await?);
        Ok::<_, Failure>(tables)
    })?;
    if rounds < ROUNDS {
        return report::show(&tables);
    }
    report::write("fleet", METHOD, &tables)
}

async fn fleets(
    single: &Server,
    cluster: &Server,
    rounds: usize,
) -> Result<(Table, Table), Failure> {
    let columns = [
        "server",
        "replicas",
        "requests/s",
        "answered",
        "requests per call",
        "Redis µs",
        "lean script's µs",
        "p99, ms",
        "over-admission",
    ];
    let mut rows = Table::new("Replicas over one Redis", &columns);
    let heads = ["replicas", "requests/s", "what", "compared with", "×", "target", "met"];
    let mut goals = Table::new("Redis' time per decision in a fleet", &heads);
    for (name, server) in [("one Redis", single), ("Cluster", cluster)] {
        for replicas in [1, 10, 100] {
            for rate in [20_000, 40_000] {
                let mut fleet = Fleet::connect(server, replicas).await?;
                let mut seen = Vec::new();
                for _ in 0..rounds {
                    seen.push(fleet.round(rate).await?);
                }
                let over = fleet.over_admission(rate).await?;
                let of = |number: fn(&Seen) -> f64| Spread::of(seen.iter().map(number));
                rows.row([
                    name.to_owned(),
                    replicas.to_string(),
                    rate.to_string(),
                    format!("{:.1} %", of(|seen| seen.answered * 100.0)),
                    format!("{:.1}", of(|seen| seen.batch)),
                    format!("{:.2}", of(|seen| seen.ours * 1e6)),
                    format!("{:.2}", of(|seen| seen.lean * 1e6)),
                    format!("{:.1}", of(|seen| seen.p99.as_secs_f64() * 1e3)),
                    over.to_string(),
                ]);
                let target = match (name, replicas, rate) {
                    ("one Redis", 100, 20_000) => Target::AtMost(1.1),
                    ("one Redis", 100, 40_000) => Target::AtMost(0.5),
                    _ => continue,
                };
                let ratio = of(|seen| seen.ours / seen.lean);
                let what = ["Redis' time", "lean script each"].map(str::to_owned);
                let cells = [replicas.to_string(), rate.to_string()].into_iter().chain(what);
                goals.row(cells.chain([format!("{ratio:.2}")]).chain(target.cells(ratio)));
            }
        }
    }
    Ok((rows, goals))
}

/// The durations of all scripts so far, including the lean script.
async fn scripts(single: &Server, cluster: &Server) -> Result<Table, Failure> {
    let heads = [
        "server",
        "99.9th percentile, ms",
        "target",
        "met",
        "longest EVALSHA, ms",
        "target",
        "met",
        "longest EVAL, with compilation, ms",
        "target",
        "met",
    ];
    let mut table = Table::new("Duration of a script", &heads);
    for (name, server) in [("one Redis", single), ("Cluster", cluster)] {
        let times = script_times(&server.client().await?).await?;
        let mut cells = vec![name.to_owned()];
        for (time, target) in times.into_iter().zip([2.0, 5.0, 5.0]) {
            cells.push(format!("{time:.2}"));
            cells.extend(Target::AtMost(target).cells(Spread::of([time])));
        }
        table.row(cells);
    }
    Ok(table)
}

/// Compares the single-node Cluster with the single server, in turns.
async fn one_node(single: &Server, cluster: &Server, rounds: usize) -> Result<Table, Failure> {
    let heads = ["keys", "tasks", "what", "compared with", "×", "target", "met"];
    let mut table = Table::new("A Cluster with one node", &heads);
    let mut sides = Vec::new();
    for server in [single, cluster] {
        let store = connect(server).await?;
        let limits = Limits(vec![(bucket("fleet", 1)?, 100_000)]);
        sides.push((Arc::new(Tollgate { store, limits }), server.client().await?));
    }
    let mut rates = [Vec::new(), Vec::new()];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=2 * rounds {
        for turn in 0..2 {
            let side = (round + turn) % 2;
            let (asks, client) = &sides[side];
            let before = processor_time(client).await?;
            let seen = load::round(asks, 512).await?;
            // The first round creates the keys.
            if round > 0 {
                rates[side].push(seen.rate);
                times[side].push((processor_time(client).await? - before) / seen.decisions);
            }
        }
    }
    for (what, [one, node], target) in [
        ("decisions per second", rates, Target::AtLeast(0.85)),
        ("Redis' time", times, Target::None),
    ] {
        let ratio = Spread::of_ratios(&node, &one);
        let cells = ["100 000", "512", what, "one server"].map(str::to_owned);
        table.row(cells.into_iter().chain([format!("{ratio:.2}")]).chain(target.cells(ratio)));
    }
    Ok(table)
}

async fn connect(server: &Server) -> Result<RedisStore, Failure> {
    let store = RedisStore::builder(&server.url())?.timeout(TIMEOUT).connect()?;
    store.connected().await;
    Ok(store)
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
            stores.push(connect(server).await?);
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
        let before = processor_time(&self.redis).await?;
        let stores = &self.stores;
        let asked = open_loop(rate, |number| {
            let store = stores[number as usize % stores.len()].clone();
            let (policy, key) = (self.policy.clone(), Key::new(address(number * 7_919 % KEYS)));
            async move { store.charge(&policy, &key, Cost::ONE).await.is_ok() }
        });
        let mut waits = asked.await;
        let ours = processor_time(&self.redis).await? - before;
        let after = totals(&self.stores);
        let answered = waits.iter().flatten().count() as f64;
        let asked = waits.len() as f64;
        waits.retain(Option::is_some);
        waits.sort_unstable();
        let p99 = waits.get(waits.len() * 99 / 100).copied().flatten().unwrap_or_default();
        let before = processor_time(&self.redis).await?;
        let lean = &self.lean;
        let others = open_loop(rate, |number| {
            let lean = Arc::clone(&lean[number as usize % lean.len()]);
            async move { lean.ask(number * 7_919).await.is_ok() }
        });
        let others = others.await.iter().flatten().count() as f64;
        let lean = (processor_time(&self.redis).await? - before) / others;
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
        let admitted = open_loop(rate, |number| {
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
async fn open_loop<F>(rate: u64, ask: impl Fn(u64) -> F) -> Vec<Option<Duration>>
where
    F: Future<Output = bool> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < SPAN {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        for number in number..due {
            let (asked, request) = (Instant::now(), ask(number));
            tasks.spawn(async move { request.await.then(|| asked.elapsed()) });
        }
        number = due;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tasks.join_all().await
}
