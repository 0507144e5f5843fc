//! A Redis server under measurement, with its clients and its numbers.

use std::sync::Arc;
use std::time::Duration;

use fred::prelude::{Builder, Client, ClientLike, Config};
use tokio::runtime::{self, Runtime};
use tollgate::RedisStore;
use tollgate::store::RedisStoreBuilder;
use tollgate_test_servers::{Cluster, Redis, RedisBuilder};

use crate::Failure;
use crate::redis::load::{Ask, Round, round};
use crate::redis::peers;
use crate::rounds::{Numbers, Side};

/// The columns of decisions. Redis' time is its processor time per decision.
pub(crate) const DECISIONS: &str = "thousand/s | median µs | p99 µs | Redis µs | scripts";
pub(crate) const RATE: &str = "thousand/s";
pub(crate) const MEDIAN: &str = "median µs";
pub(crate) const P99: &str = "p99 µs";
pub(crate) const REDIS: &str = "Redis µs";

/// Starts a server, with redis-cell if it was built.
pub(crate) fn start() -> Redis {
    let server = remembering(Redis::builder());
    match peers::module() {
        Some(module) => server.set("loadmodule", module.display()).start(),
        None => server.start(),
    }
}

/// Starts a Cluster with a single node, which has all slots.
pub(crate) fn start_cluster() -> Cluster {
    Cluster::builder().masters(1).replicas(0).each_node(remembering).start()
}

/// The server remembers this many scripts that took more than 1 ms.
const MOST_SLOW: &str = "100000";

fn remembering(server: RedisBuilder) -> RedisBuilder {
    server.set("slowlog-log-slower-than", 1000).set("slowlog-max-len", MOST_SLOW)
}

/// Two worker threads.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Ok(runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// A plain client, configured as a service would.
pub(crate) async fn connect(url: &str) -> Result<Client, Failure> {
    let mut builder = Builder::from_config(Config::from_url(url)?);
    builder.with_connection_config(|connection| connection.tcp.nodelay = Some(true));
    let client = builder.build()?;
    client.init().await?;
    Ok(client)
}

/// A server and the runtime of its clients.
#[derive(Clone)]
pub(crate) struct Lab<'a> {
    pub(crate) redis: &'a Redis,
    pub(crate) url: String,
    runtime: &'a Runtime,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(redis: &'a Redis, runtime: &'a Runtime) -> Self {
        Self { redis, url: redis.url(), runtime }
    }

    /// With stores that know the Cluster, and clients of its only node.
    pub(crate) fn cluster(cluster: &'a Cluster, runtime: &'a Runtime) -> Self {
        Self { redis: cluster.node(0), url: cluster.url(), runtime }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        self.run(connect(&self.redis.url()))
    }

    /// A connected store that waits long enough for a busy machine.
    pub(crate) fn store(&self) -> Result<RedisStore, Failure> {
        self.store_with(|store| store)
    }

    pub(crate) fn store_with(
        &self,
        configure: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
    ) -> Result<RedisStore, Failure> {
        let builder = RedisStore::builder(&self.url)?.timeout(Duration::from_secs(5));
        let _runtime = self.runtime.enter();
        let store = configure(builder).connect()?;
        self.run(store.connected());
        Ok(store)
    }

    /// A side that sends requests from some tasks and must not be denied.
    pub(crate) fn side(&self, name: &'static str, tasks: usize, asks: impl Ask) -> Side<'a> {
        let (lab, asks) = (self.clone(), Arc::new(asks));
        self.contender(name, move || lab.run(round(&asks, tasks)))
    }

    /// The same with decisions of any result.
    pub(crate) fn denying(&self, name: &'static str, tasks: usize, asks: impl Ask) -> Side<'a> {
        let (lab, asks) = (self.clone(), Arc::new(asks));
        self.measured(name, move || lab.run(round(&asks, tasks)))
    }

    /// A side that uses the server in any way and must not be denied.
    pub(crate) fn contender(
        &self,
        name: &'static str,
        mut run: impl FnMut() -> Result<Round, Failure> + 'a,
    ) -> Side<'a> {
        self.measured(name, move || without_denials(name, run()?))
    }

    fn measured(
        &self,
        name: &'static str,
        mut run: impl FnMut() -> Result<Round, Failure> + 'a,
    ) -> Side<'a> {
        let redis = self.redis;
        Side::new(name, move || {
            let before = Work::so_far(redis)?;
            let Round { decisions, rate, median, p99, .. } = run()?;
            let after = Work::so_far(redis)?;
            let micros = (after.seconds - before.seconds) * 1e6 / decisions;
            let scripts = (after.scripts - before.scripts) / decisions;
            Ok(vec![rate / 1e3, median * 1e6, p99 * 1e6, micros, scripts])
        })
    }

    /// Removes the server's scripts and its statistics about them.
    pub(crate) fn forget_scripts(&self) {
        for command in [["SCRIPT", "FLUSH"], ["CONFIG", "RESETSTAT"], ["SLOWLOG", "RESET"]] {
            self.redis.cmd(&command);
        }
    }

    /// The durations of all scripts since [`forget_scripts`](Self::forget_scripts), in milliseconds of
    /// wall-clock time: the 99.9th percentile of `EVALSHA`, the longest `EVALSHA`, and the longest
    /// `EVAL`, which compiles a script. The longest are zero if all took less than 1 ms.
    pub(crate) fn script_times(&self) -> Result<Numbers, Failure> {
        let info = self.redis.cmd(&["INFO", "latencystats"]);
        let percentile = info.text().lines().find_map(|line| {
            let percentiles = line.strip_prefix("latency_percentiles_usec_evalsha:")?;
            percentiles.rsplit_once("p99.9=")?.1.trim().parse::<f64>().ok()
        });
        let percentile = percentile.ok_or("INFO latencystats has no EVALSHA; it needs Redis 7")?;
        let slow = self.redis.cmd(&["SLOWLOG", "GET", MOST_SLOW]);
        let longest = |name: &str| {
            let is_meant = |entry: &&[_]| matches!(entry, [_, _, _, it, ..] if name == command(it));
            let entries = slow.list().iter().map(|entry| entry.list()).filter(is_meant);
            entries.map(|entry| entry[2].number() as f64).fold(0.0, f64::max)
        };
        let micros = [percentile, longest("EVALSHA"), longest("EVAL")];
        Ok(micros.map(|micros| micros / 1e3).into())
    }
}

/// A limiter that denies measures less work than its peers.
fn without_denials(name: &str, round: Round) -> Result<Round, Failure> {
    let denied = round.decisions - round.admitted;
    if denied > 0.0 {
        return Err(format!("{name}: {denied} requests were denied").into());
    }
    Ok(round)
}

fn command(entry: &tollgate_test_servers::Value) -> &str {
    entry.list().first().map_or("", |name| name.text())
}

/// What a server has done.
pub(crate) struct Work {
    /// Processor time.
    pub(crate) seconds: f64,
    pub(crate) scripts: f64,
}

impl Work {
    pub(crate) fn so_far(redis: &Redis) -> Result<Self, Failure> {
        let number = |name: &str| redis.info(name).parse::<f64>();
        let seconds = number("used_cpu_user")? + number("used_cpu_sys")?;
        Ok(Self { seconds, scripts: redis.calls("evalsha") as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_requests_fail_the_round() {
        let round = |admitted| Round { decisions: 3.0, admitted, rate: 1.0, median: 1.0, p99: 1.0 };
        assert!(without_denials("a", round(3.0)).is_ok());
        let error = without_denials("a peer", round(1.0)).unwrap_err();
        assert_eq!(error.to_string(), "a peer: 2 requests were denied");
    }
}
