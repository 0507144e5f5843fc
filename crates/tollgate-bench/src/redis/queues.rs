//! Calls that all processes queue in one order, compared with other clients' queues.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::Client;
use fred::types::{ClusterHash, CustomCommand};
use tollgate::{Policy, Quota, RedisStore};

use crate::Failure;
use crate::redis::load::{Round, round};
use crate::redis::peers::folder;
use crate::redis::server::{Server, processor_time};
use crate::redis::sides::{self, Limits, OneEach, Tollgate};
use crate::report::Table;
use crate::rounds::Spread;

const TASKS: usize = 32;

/// Nearly all calls get an instant in the future.
const LONG: Duration = Duration::from_secs(10 * 3_600);

/// How many calls another limiter's process makes.
const CALLS: u32 = 10_000;

const OURS: &str = "Tollgate, a script each";
const PLAIN: &str = "the same, without a queue";

/// Clients in Node.
const PEERS: [(&str, &str); 2] =
    [("Effect 4.1, shared and learned rate", "effect"), ("bottleneck 2.19", "bottleneck")];

pub(crate) async fn table(server: &Server, rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Calls in one order, 32 tasks",
        &["limiter", "scripts per call", "Redis µs per call", "×"],
    );
    let redis = server.client().await?;
    let store = RedisStore::builder(&server.url())?.timeout(Duration::from_secs(5)).connect()?;
    store.connected().await;
    let tollgate = |policy| Arc::new(Tollgate { store: store.clone(), limits: one(policy) });
    let each = async |policy| OneEach::new(server.client().await?, one(policy), false).await;
    let quota = Quota::per_minute(100_000);
    let bucket = |name| Policy::token_bucket(name, quota);
    let log = Policy::sliding_window_log("log", quota)?.with_queue(LONG)?;
    let queued_each = Arc::new(each(bucket("queued")?.with_queue(LONG)?).await?);
    let plain_each = Arc::new(each(sides::bucket("plain", 1)?).await?);
    let (queued, log) = (tollgate(bucket("batched")?.with_queue(LONG)?), tollgate(log));
    let mut sides: Vec<(_, Vec<Used>)> = [OURS, PLAIN, "Tollgate", "Tollgate, sliding window log"]
        .into_iter()
        .chain(PEERS.map(|(name, _)| name))
        .map(|name| (name, Vec::new()))
        .collect();
    let peers = peers();
    if peers.is_none() {
        sides.truncate(4);
    }
    for _ in 0..rounds {
        for (number, (_, seen)) in sides.iter_mut().enumerate() {
            let before = Used::so_far(&redis).await?;
            let round = match number {
                0 => round(&queued_each, TASKS).await?,
                1 => round(&plain_each, TASKS).await?,
                2 => round(&queued, TASKS).await?,
                3 => round(&log, TASKS).await?,
                _ => call(peers.as_deref(), PEERS[number - 4].1, server)?,
            };
            if round.admitted < round.decisions {
                return Err("a call found the queue full".into());
            }
            seen.push(Used::so_far(&redis).await?.since(before, round.decisions));
        }
    }
    let ours: Vec<_> = sides[0].1.iter().map(|used| used.seconds).collect();
    for (name, used) in &sides {
        let theirs: Vec<_> = used.iter().map(|used| used.seconds).collect();
        let micros = Spread::of(theirs.iter().map(|seconds| seconds * 1e6));
        let scripts = Spread::of(used.iter().map(|used| used.scripts)).median;
        let times = Spread::of_ratios(&theirs, &ours);
        let numbers = [format!("{scripts:.2}"), micros.to_string(), format!("{times:.2}")];
        table.row([(*name).to_owned()].into_iter().chain(numbers));
    }
    Ok(table)
}

fn one(policy: Policy) -> Limits {
    Limits(vec![(policy, 1)])
}

/// What Redis has done.
#[derive(Clone, Copy)]
struct Used {
    /// Processor time.
    seconds: f64,
    scripts: f64,
}

impl Used {
    async fn so_far(redis: &Client) -> Result<Self, Failure> {
        let command = CustomCommand::new_static("INFO", ClusterHash::FirstKey, false);
        let info: String = redis.custom(command, vec!["commandstats"]).await?;
        let scripts = info.lines().find_map(|line| {
            let calls = line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?;
            calls.parse().ok()
        });
        let seconds = processor_time(redis).await?;
        Ok(Self { seconds, scripts: scripts.unwrap_or_default() })
    }

    /// For each of some calls.
    fn since(self, before: Self, calls: f64) -> Self {
        let seconds = (self.seconds - before.seconds) / calls;
        Self { seconds, scripts: (self.scripts - before.scripts) / calls }
    }
}

/// The folder of the clients in Node, if they are installed.
pub(crate) fn peers() -> Option<PathBuf> {
    Some(folder()?.join("queues")).filter(|folder| folder.join("node_modules").is_dir())
}

fn call(peers: Option<&Path>, limiter: &str, server: &Server) -> Result<Round, Failure> {
    let program = peers.ok_or("no clients in Node")?.join("queues.mjs");
    let numbers = [server.port().to_string(), CALLS.to_string(), TASKS.to_string()];
    let status = Command::new("node").arg(program).arg(limiter).args(numbers).status()?;
    if !status.success() {
        return Err(format!("{limiter} failed: {status}").into());
    }
    let decisions = f64::from(CALLS);
    // Its own times count the start of Node.
    Ok(Round { decisions, admitted: decisions, rate: f64::NAN, median: f64::NAN, p99: f64::NAN })
}
