//! The servers of the benchmarks over sockets.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime;

use crate::Failure;

/// Serves on two worker threads until the standard input closes. `app` runs inside the runtime.
pub(crate) fn run(
    app: impl Future<Output = Result<Router, Failure>>,
    port: u16,
) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let app = app.await?.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        // Exits when its input closes, so the server does not outlive the benchmark.
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served?,
            closed = tokio::task::spawn_blocking(wait_for_end_of_input) => closed?,
        }
        Ok(())
    })
}

/// A server process, killed on drop.
pub(crate) struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Runs this program with `args` and a port, and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Result<Self, Failure> {
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let process = Command::new(std::env::current_exe()?)
            .args(args)
            .args(["--port", &port.to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        let server = Self { process, port };
        let started = Instant::now();
        while TcpStream::connect(server.address()).is_err() {
            if started.elapsed() > Duration::from_secs(10) {
                return Err(format!("the server `{}` does not listen", args.join(" ")).into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_for_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
