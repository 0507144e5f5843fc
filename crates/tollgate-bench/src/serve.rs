//! The server of the benchmark over sockets.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::runtime;

use crate::Failure;
use crate::apps::{Wrapping, app};

/// Serves until it is killed, on two worker threads.
pub(crate) fn run(wrapping: Wrapping, port: u16) -> Result<(), Failure> {
    let app = app(wrapping)?.into_make_service_with_connect_info::<SocketAddr>();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        // A server that nobody waits for must not stay behind: it ends with the input.
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served?,
            closed = tokio::task::spawn_blocking(wait_for_end_of_input) => closed?,
        }
        Ok(())
    })
}

fn wait_for_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
