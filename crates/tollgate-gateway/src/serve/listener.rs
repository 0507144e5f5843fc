//! Where clients connect.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;
use tollgate::status::Inspect;

use super::app::Door;
use super::connection;
use super::gateway::Gateway;

/// Takes connections until the gateway drains. Then the ones that wait already are taken
/// too: their clients have been told that they are connected.
pub(super) async fn accept<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    listener: TcpListener,
    address: SocketAddr,
    mut door: Door,
    connections: TaskTracker,
) {
    let draining = gateway.draining.clone();
    loop {
        let accepted = tokio::select! {
            // First, or a listener that never rests would never hear it.
            biased;
            () = draining.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => take(&gateway, stream, peer, address, &mut door, &connections),
            Err(error) => rest(&error).await,
        }
    }
    while let Ok(accepted) = tokio::time::timeout(Duration::ZERO, listener.accept()).await {
        if let Ok((stream, peer)) = accepted {
            take(&gateway, stream, peer, address, &mut door, &connections);
        }
    }
}

fn take<St: Inspect>(
    gateway: &Arc<Gateway<St>>,
    stream: TcpStream,
    peer: SocketAddr,
    address: SocketAddr,
    door: &mut Door,
    connections: &TaskTracker,
) {
    // A listener that the new configuration does not have goes on as it was.
    if let Some(changed) = gateway.app().doors.get(&address) {
        door.clone_from(changed);
    }
    connections.spawn(connection::serve(Arc::clone(gateway), stream, peer, door.clone()));
}

/// A client that was gone before we came is its own affair; where nothing is left to
/// open connections with, trying again at once would only take the processor as well.
pub(super) async fn rest(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    tracing::error!(%error, "cannot take a connection; raise the limit of open files (ulimit -n)");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
