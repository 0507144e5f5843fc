//! A redis-server without persistence.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::Process;
use crate::{Failure, port};

/// A redis-server with the settings of `docker-compose.yml`: no persistence and no eviction.
#[derive(Debug)]
pub struct Redis {
    /// The process, which can be frozen or stopped.
    pub process: Process,
    address: SocketAddr,
    folder: PathBuf,
}

impl Redis {
    /// Starts Redis on `listen` and waits until it responds. Port 0 selects a free port.
    ///
    /// # Errors
    /// The port is in use, or redis-server is missing or does not start.
    pub fn start(listen: SocketAddr, folder: &Path) -> Result<Self, Failure> {
        let address = port::chosen(listen)?;
        port::is_free(address, "redis")?;
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let args = ["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no"];
        let bounds = ["--maxmemory", "128mb", "--maxmemory-policy", "noeviction"];
        let args = args.into_iter().chain(bounds);
        let mut process = Process::start("redis", "redis-server", args, &[], folder)?;
        process.until(|_| answers(address).is_ok())?;
        Ok(Self { process, address, folder: folder.to_owned() })
    }

    /// Kills Redis if it still runs, and starts an empty Redis on the same port.
    ///
    /// # Errors
    /// The same as [`Redis::start`].
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.process.kill();
        *self = Self::start(self.address, &self.folder)?;
        Ok(())
    }

    /// The address on which Redis listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for the replicas.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

fn answers(address: SocketAddr) -> io::Result<()> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    if answer == *b"+PONG" { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
