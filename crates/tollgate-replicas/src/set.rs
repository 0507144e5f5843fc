//! All of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Failure, Nginx, Plan, Redis, Replica, port};

/// What a set is made of. A port of 0 is a free one.
#[derive(Clone, Debug)]
pub struct Order {
    /// The demo, an absolute path.
    pub program: PathBuf,
    /// Of nginx.
    pub port: u16,
    /// Of the first replica; the others have the next ones.
    pub replica_port: u16,
    /// Of Redis.
    pub redis_port: u16,
    /// What each replica is told besides its name, its address and its store.
    pub flags: Vec<String>,
    /// All that each replica has in its environment but `PATH`.
    pub variables: Vec<(String, String)>,
    /// The admin addresses, with a live page that shows all three, if there are to be any.
    pub admin: Option<Admin>,
}

/// The admin addresses of a set.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Of the first replica; the others have the next ones. A port of 0 is a free one.
    pub port: u16,
    /// What operators must know.
    pub token: String,
}

/// Redis, three replicas and nginx. Dropping it ends them, nginx first, and removes what they
/// wrote.
#[derive(Debug)]
pub struct Set {
    /// The balancer.
    pub nginx: Nginx,
    /// `api1`, `api2` and `api3`.
    pub replicas: Vec<Replica>,
    /// Where the quota is.
    pub redis: Redis,
    /// The admin addresses of the replicas, in their order; none if they have none.
    pub admins: Vec<SocketAddr>,
    folder: TempDir,
}

impl Set {
    /// Starts all, in the order in which one needs the other.
    ///
    /// # Errors
    /// A port is in use, a program is missing or does not start.
    pub fn start(order: &Order) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("tollgate-set-").tempdir();
        let folder = folder
            .map_err(|error| Failure::new(format!("cannot make a temporary folder: {error}")))?;
        let path = folder.path();
        // Before anything is started, so that nothing has to be stopped.
        for program in ["redis-server", "nginx"] {
            crate::find(program)?;
        }
        // The replicas have to be told before it is there.
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
        let redis = Redis::start(local(order.redis_port), path)?;
        let store = ["--store".to_owned(), redis.url()];
        let replicas = (0..3u16).map(|index| {
            let mut flags: Vec<_> = store.iter().chain(&order.flags).cloned().collect();
            let mut variables = order.variables.clone();
            if let Some(admin) = &order.admin {
                flags.extend(operated(&admins, usize::from(index), balancer));
                // Not as a flag: those everybody on the machine can read.
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

    /// Where the logs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Asks all replicas at once to end when they have answered what they have begun, as
    /// nobody can ask them anything new.
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

/// What a replica is told of the admin addresses: which is its own, whose streams the page
/// shows, and where it sends requests.
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

/// The address of the replica with this number; a free one if the first is.
fn following(first: u16, index: u16) -> Result<SocketAddr, Failure> {
    let port = if first == 0 { Some(0) } else { first.checked_add(index) };
    let port =
        port.ok_or_else(|| Failure::new("there is no port for each replica; choose a lower one"))?;
    Ok(local(port))
}

const TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
