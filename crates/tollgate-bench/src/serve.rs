//! The servers of the benchmarks over sockets.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime;

use crate::Failure;
use crate::process::{Running, free_ports, local};
use crate::served::Port;

/// Serves on two worker threads until the standard input closes. `app` runs inside the runtime.
pub(crate) fn run(
    app: impl Future<Output = Result<Router, Failure>>,
    port: u16,
) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let app = app.await?.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind(local(port)).await?;
        // Exits when its input closes, so the server does not outlive the benchmark.
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served?,
            closed = tokio::task::spawn_blocking(wait_for_end_of_input) => closed?,
        }
        Ok(())
    })
}

/// A server process.
pub(crate) struct Server {
    process: Running,
    port: u16,
}

impl Server {
    /// Runs this program with `args` and a port, and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Result<Self, Failure> {
        let port = free_ports(1)?[0];
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).args(["--port", &port.to_string()]).stdin(Stdio::piped());
        Ok(Self { process: Running::listening(&mut command, &[port])?, port })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        local(self.port)
    }

    pub(crate) fn port(&self) -> Port {
        Port { number: self.port, processes: vec![self.process.id()] }
    }
}

fn wait_for_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
