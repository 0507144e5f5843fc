//! One replica of the demo.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::process::Process;
use crate::{Failure, port};

/// How a replica is started, the first time and after that.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The demo, an absolute path.
    pub program: PathBuf,
    /// What it is called, in `X-Server-Id` too.
    pub name: String,
    /// Where it listens; port 0 takes a free one, which it keeps.
    pub listen: SocketAddr,
    /// What else it is told.
    pub flags: Vec<String>,
    /// All of its environment but `PATH`.
    pub variables: Vec<(String, String)>,
    /// Where its log goes.
    pub folder: PathBuf,
}

/// A replica, in a process of its own.
#[derive(Debug)]
pub struct Replica {
    /// The process, to be frozen or ended.
    pub process: Process,
    /// How it is started again.
    pub plan: Plan,
}

impl Replica {
    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// The port is in use, the program is missing, or its flags are wrong.
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
            process.said().lines().any(|line| line.trim().starts_with("listening  http://"))
        })?;
        Ok(Self { process, plan })
    }

    /// Starts it again, on the port that it had. What is left of the old one is killed.
    ///
    /// # Errors
    /// As [`Replica::start`].
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.process.kill();
        *self = Self::start(self.plan.clone())?;
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.plan.listen
    }
}
