//! A redis-server for the benchmarks.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fred::interfaces::ClientLike;
use fred::prelude::{Builder, Client, Config, Value};
use fred::types::{ClusterHash, CustomCommand, InfoKind};

use crate::Failure;
use crate::redis::peers;

/// A server without persistence, killed when dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    is_cluster: bool,
}

impl Server {
    /// Starts a server, with redis-cell if it was built.
    pub(crate) fn start() -> Result<Self, Failure> {
        Self::start_with(false)
    }

    /// Starts a Cluster with a single node, which has all slots.
    pub(crate) fn start_cluster() -> Result<Self, Failure> {
        let server = Self::start_with(true)?;
        let cluster = |arguments: &[&str]| -> Result<String, Failure> {
            let port = server.port.to_string();
            let mut command = Command::new("redis-cli");
            let output = command.args(["-p", &port, "CLUSTER"]).args(arguments).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        cluster(&["ADDSLOTSRANGE", "0", "16383"])?;
        let started = Instant::now();
        while !cluster(&["INFO"])?.contains("cluster_state:ok") {
            if started.elapsed() > Duration::from_secs(10) {
                return Err("the single-node Cluster does not start; it needs Redis 7".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn start_with(is_cluster: bool) -> Result<Self, Failure> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        if let Some(module) = peers::module() {
            command.arg("--loadmodule").arg(module);
        }
        if is_cluster {
            let nodes = format!("tollgate-bench-{port}.conf");
            command.current_dir(std::env::temp_dir());
            command.args(["--cluster-enabled", "yes", "--cluster-config-file", &nodes]);
        }
        let process = command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--slowlog-log-slower-than", "1000"])
            .args(["--slowlog-max-len", MOST_SLOW])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("redis-server: {error}; sudo apt-get install redis-server"))?;
        let mut server = Self { process, port, is_cluster };
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = server.process.try_wait()? {
                return Err(
                    format!("redis-server exited immediately: {status}; run {command:?}").into()
                );
            }
            if started.elapsed() > Duration::from_secs(10) {
                return Err("redis-server does not listen".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_cluster { "redis-cluster" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A plain client for this node, even if it is in a Cluster.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        client(&format!("redis://127.0.0.1:{}", self.port)).await
    }
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if self.is_cluster {
            let nodes = format!("tollgate-bench-{}.conf", self.port);
            let _ = std::fs::remove_file(std::env::temp_dir().join(nodes));
        }
    }
}

/// The server's processor time so far, in seconds.
pub(crate) async fn processor_time(client: &Client) -> Result<f64, Failure> {
    let info: String = client.info(Some(InfoKind::Cpu)).await?;
    let field = |name: &str| -> Option<f64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok())
    };
    let both = field("used_cpu_user").zip(field("used_cpu_sys"));
    let (user, system) = both.ok_or("INFO cpu has no processor times")?;
    Ok(user + system)
}

/// The server remembers this many scripts that took more than 1 ms.
const MOST_SLOW: &str = "100000";

/// Durations of the server's scripts so far, in milliseconds of wall-clock time: the 99.9th
/// percentile of `EVALSHA`, the longest `EVALSHA`, and the longest `EVAL`, which compiles a script.
/// The longest are zero if all took less than 1 ms.
pub(crate) async fn script_times(client: &Client) -> Result<[f64; 3], Failure> {
    let command = |name| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
    let info: String = client.custom(command("INFO"), vec!["latencystats"]).await?;
    let percentile = info.lines().find_map(|line| {
        let percentiles = line.strip_prefix("latency_percentiles_usec_evalsha:")?;
        percentiles.rsplit_once("p99.9=")?.1.parse::<f64>().ok()
    });
    let percentile = percentile.ok_or("INFO latencystats has no EVALSHA; it needs Redis 7")?;
    let slow: Vec<Vec<Value>> = client.custom(command("SLOWLOG"), vec!["GET", MOST_SLOW]).await?;
    let longest = |name: &str| {
        let times = slow.iter().filter_map(|entry| {
            let is_meant = entry.get(3)?.clone().into_array().first()?.as_str()? == name;
            is_meant.then(|| entry.get(2)?.as_f64())?
        });
        times.fold(0.0, f64::max)
    };
    Ok([percentile, longest("EVALSHA"), longest("EVAL")].map(|micros| micros / 1e3))
}
