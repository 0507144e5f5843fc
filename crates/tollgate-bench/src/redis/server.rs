//! The Redis server of a benchmark, and numbers from it.

use fred::interfaces::ClientLike;
use fred::prelude::{Builder, Client, Config, Value};
use fred::types::{ClusterHash, CustomCommand};
use tollgate_test_servers::{Cluster, Redis, RedisBuilder};

use crate::Failure;
use crate::redis::peers;

/// Starts a server, with redis-cell if it was built.
pub(crate) fn start() -> Redis {
    let module = peers::module();
    let server = remembering(Redis::builder());
    match module {
        Some(module) => server.set("loadmodule", module.display()).start(),
        None => server.start(),
    }
}

/// Starts a Cluster with a single node, which has all slots.
pub(crate) fn start_cluster() -> Cluster {
    Cluster::builder().masters(1).replicas(0).each_node(remembering).start()
}

fn remembering(server: RedisBuilder) -> RedisBuilder {
    server.set("slowlog-log-slower-than", 1000).set("slowlog-max-len", MOST_SLOW)
}

/// A plain client, configured as a service would.
pub(crate) async fn client(url: &str) -> Result<Client, Failure> {
    connect(Config::from_url(url)?).await
}

/// The same with this configuration.
pub(crate) async fn connect(config: Config) -> Result<Client, Failure> {
    let mut builder = Builder::from_config(config);
    builder.with_connection_config(|connection| connection.tcp.nodelay = Some(true));
    let client = builder.build()?;
    client.init().await?;
    Ok(client)
}

/// What a server has done.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Processor time in seconds.
    pub(crate) seconds: f64,
    pub(crate) scripts: f64,
}

impl Work {
    pub(crate) async fn so_far(client: &Client) -> Result<Self, Failure> {
        let info = info(client, "everything").await?;
        let field = |name: &str| -> Option<f64> {
            info.lines().find_map(|line| line.strip_prefix(name)?.split(',').next()?.parse().ok())
        };
        let both = field("used_cpu_user:").zip(field("used_cpu_sys:"));
        let (user, system) = both.ok_or("INFO has no processor times")?;
        let scripts = field("cmdstat_evalsha:calls=").unwrap_or_default();
        Ok(Self { seconds: user + system, scripts })
    }
}

async fn info(client: &Client, section: &str) -> Result<String, Failure> {
    let command = CustomCommand::new_static("INFO", ClusterHash::FirstKey, false);
    Ok(client.custom(command, vec![section]).await?)
}

/// The server remembers this many scripts that took more than 1 ms.
const MOST_SLOW: &str = "100000";

/// Durations of the server's scripts so far, in milliseconds of wall-clock time: the 99.9th
/// percentile of `EVALSHA`, the longest `EVALSHA`, and the longest `EVAL`, which compiles a script.
/// The longest are zero if all took less than 1 ms.
pub(crate) async fn script_times(client: &Client) -> Result<[f64; 3], Failure> {
    let info = info(client, "latencystats").await?;
    let percentile = info.lines().find_map(|line| {
        let percentiles = line.strip_prefix("latency_percentiles_usec_evalsha:")?;
        percentiles.rsplit_once("p99.9=")?.1.parse::<f64>().ok()
    });
    let percentile = percentile.ok_or("INFO latencystats has no EVALSHA; it needs Redis 7")?;
    let command = CustomCommand::new_static("SLOWLOG", ClusterHash::FirstKey, false);
    let slow: Vec<Vec<Value>> = client.custom(command, vec!["GET", MOST_SLOW]).await?;
    let longest = |name: &str| {
        let times = slow.iter().filter_map(|entry| {
            let is_meant = entry.get(3)?.clone().into_array().first()?.as_str()? == name;
            is_meant.then(|| entry.get(2)?.as_f64())?
        });
        times.fold(0.0, f64::max)
    };
    Ok([percentile, longest("EVALSHA"), longest("EVAL")].map(|micros| micros / 1e3))
}
