//! Redis, three replicas and nginx together.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Failure, Nginx, Plan, Redis, Replica, port};

/// The settings of a [`Set`]. Port 0 selects a free port.
#[derive(Clone, Debug)]
pub struct Order {
    /// The absolute path of the demo program.
    pub program: PathBuf,
    /// The port of nginx.
    pub port: u16,
    /// The port of the first replica; the other replicas take the next ports.
    pub replica_port: u16,
    /// The port of Redis.
    pub redis_port: u16,
    /// Flags for each replica, in addition to its name, address and store.
    pub flags: Vec<String>,
    /// The environment variables of each replica; only `PATH` is added.
    pub variables: Vec<(String, String)>,
    /// The replicas' admin listeners, with a live page that shows all three. `None` disables them.
    pub admin: Option<Admin>,
}

/// The admin addresses of a set.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The admin port of the first replica; the other replicas take the next ports. Port 0 selects
    /// free ports.
    pub port: u16,
    /// The token that operators send.
    pub token: String,
}

/// Running Redis, replicas and nginx. Dropping this value stops these processes, nginx first, and
/// removes their folder.
#[derive(Debug)]
pub struct Set {
    /// The load balancer.
    pub nginx: Nginx,
    /// `api1`, `api2` and `api3`.
    pub replicas: Vec<Replica>,
    /// The replicas' store.
    pub redis: Redis,
    /// The admin addresses in replica order; empty without [`Order::admin`].
    pub admins: Vec<SocketAddr>,
    folder: TempDir,
}

impl Set {
    /// Starts Redis, then the replicas, then nginx.
    ///
    /// # Errors
    /// A port is in use, or a program is missing or does not start.
    pub fn start(order: &Order) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("tollgate-set-").tempdir();
        let folder = folder
            .map_err(|error| Failure::new(format!("cannot make a temporary folder: {error}")))?;
        let path = folder.path();
        // Report a missing program before any process is started.
        for program in ["redis-server", "nginx"] {
            crate::find(program)?;
        }
        // The replicas start before nginx, but need its address for the admin page.
        let balancer = match &order.admin {
            Some(_) => port::chosen(local(order.port))?,
            None => local(order.port),
        };
        let admins = match &order.admin {
            Some(admin) => (0..3)
                .map(|index| port::chosen(following(admin.port, index)?))
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        // The settings of `docker-compose.yml`.
        let redis = Redis::builder().port(order.redis_port).max_memory("128mb", "noeviction");
        let redis = redis.within(path).try_start()?;
        let store = ["--store".to_owned(), redis.url()];
        let replicas = (0..3u16).map(|index| {
            let mut flags: Vec<_> = store.iter().chain(&order.flags).cloned().collect();
            let mut variables = order.variables.clone();
            if let Some(admin) = &order.admin {
                flags.extend(operated(&admins, usize::from(index), balancer));
                // Not a flag, because every user of this machine can read a process's flags.
                variables.retain(|(name, _)| name != TOKEN);
                variables.push((TOKEN.to_owned(), admin.token.clone()));
            }
            Replica::start(Plan {
                program: order.program.clone(),
                name: format!("api{}", index + 1),
                listen: following(order.replica_port, index)?,
                flags,
                variables,
                folder: path.to_owned(),
            })
        });
        let replicas = replicas.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = replicas.iter().map(Replica::address).collect();
        let nginx = Nginx::start(balancer, &addresses, path)?;
        Ok(Self { nginx, replicas, redis, admins, folder })
    }

    /// The folder with the logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops nginx so that no new requests arrive, and then all replicas at the same time. Each
    /// replica finishes its requests in flight. A process that takes longer than `patience` is
    /// killed.
    pub fn stop(mut self, patience: std::time::Duration) {
        self.nginx.process.terminate();
        self.nginx.process.wait(patience);
        for replica in &self.replicas {
            replica.process.terminate();
        }
        for replica in &mut self.replicas {
            replica.process.wait(patience);
        }
    }
}

/// A replica's admin flags: its own admin address, the replicas that the live page shows, and the
/// address that receives the page's requests.
fn operated(admins: &[SocketAddr], index: usize, balancer: SocketAddr) -> [String; 6] {
    let peers: Vec<_> = admins.iter().map(|peer| format!("http://{peer}")).collect();
    [
        "--admin".to_owned(),
        admins[index].to_string(),
        "--admin-peers".to_owned(),
        peers.join(","),
        "--admin-target".to_owned(),
        format!("http://{balancer}"),
    ]
}

/// The address of the replica with this index. Port 0 remains 0.
fn following(first: u16, index: u16) -> Result<SocketAddr, Failure> {
    let port = if first == 0 { Some(0) } else { first.checked_add(index) };
    let port = port.ok_or_else(|| {
        Failure::new("the ports of the replicas would exceed 65535; choose a lower first port")
    })?;
    Ok(local(port))
}

const TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
