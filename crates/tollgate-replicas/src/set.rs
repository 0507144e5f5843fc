//! All of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Failure, Nginx, Plan, Redis, Replica};

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
        let redis = Redis::start(local(order.redis_port), path)?;
        let store = ["--store".to_owned(), redis.url()];
        let replicas = (0..3u16).map(|index| {
            let port = if order.replica_port == 0 {
                Some(0)
            } else {
                order.replica_port.checked_add(index)
            };
            let port = port.ok_or_else(|| {
                Failure::new("there is no port for each replica; choose a lower one")
            })?;
            Replica::start(Plan {
                program: order.program.clone(),
                name: format!("api{}", index + 1),
                listen: local(port),
                flags: store.iter().chain(&order.flags).cloned().collect(),
                variables: order.variables.clone(),
                folder: path.to_owned(),
            })
        });
        let replicas = replicas.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = replicas.iter().map(Replica::address).collect();
        let nginx = Nginx::start(local(order.port), &addresses, path)?;
        Ok(Self { nginx, replicas, redis, folder })
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

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
