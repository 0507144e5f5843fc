//! A replica of the demo program.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::process::Process;
use crate::{Failure, port};

/// The command line of a replica, for the first start and each restart.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The absolute path of the demo program.
    pub program: PathBuf,
    /// The name, which the replica also sends in the `X-Server-Id` header.
    pub name: String,
    /// The address to listen on. Port 0 selects a free port, which restarts reuse.
    pub listen: SocketAddr,
    /// The other command-line flags.
    pub flags: Vec<String>,
    /// The environment variables; only `PATH` is added.
    pub variables: Vec<(String, String)>,
    /// The folder for the log.
    pub folder: PathBuf,
}

/// A running replica.
#[derive(Debug)]
pub struct Replica {
    /// The process, which can be frozen or stopped.
    pub process: Process,
    /// The command line for a restart.
    pub plan: Plan,
}

impl Replica {
    /// Starts the replica and waits until it listens.
    ///
    /// # Errors
    /// The port is in use, the program is missing, or its flags are invalid.
    pub fn start(mut plan: Plan) -> Result<Self, Failure> {
        plan.listen = port::chosen(plan.listen)?;
        port::is_free(plan.listen, &plan.name)?;
        let listen = plan.listen.to_string();
        let named = ["--server-id", &plan.name, "--listen", &listen];
        let args = named.into_iter().chain(plan.flags.iter().map(String::as_str));
        let program = plan.program.to_string_lossy();
        let mut process =
            Process::start(&plan.name, &program, args, &plan.variables, &plan.folder)?;
        process.until(|process| {
            process.output().lines().any(|line| line.trim().starts_with("listening  http://"))
        })?;
        Ok(Self { process, plan })
    }

    /// Kills the replica if it still runs, and starts it again on the same port.
    ///
    /// # Errors
    /// The same as [`Replica::start`].
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.process.kill();
        *self = Self::start(self.plan.clone())?;
        Ok(())
    }

    /// The address on which the replica listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.plan.listen
    }
}
