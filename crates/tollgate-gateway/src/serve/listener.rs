//! Where clients connect.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tollgate::status::Inspect;

use super::app::Door;
use super::connection;
use super::gateway::Gateway;
use super::room::Room;

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
    let room = Room::default();
    // A listener that the new configuration does not have goes on as it was.
    let changed = || gateway.app().doors.get(&address).cloned();
    loop {
        let most = || changed().map_or(door.most, |door| door.most);
        let accepted = tokio::select! {
            // First, or a listener that never rests would never hear it.
            biased;
            () = draining.cancelled() => break,
            accepted = async {
                room.free(most).await;
                listener.accept().await
            } => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                door = changed().unwrap_or(door);
                let (gateway, door) = (Arc::clone(&gateway), door.clone());
                connections.spawn(connection::serve(gateway, stream, peer, door, room.take()));
            }
            Err(error) => rest(&error).await,
        }
    }
    while !room.is_full()
        && let Ok(accepted) = tokio::time::timeout(Duration::ZERO, listener.accept()).await
    {
        if let Ok((stream, peer)) = accepted {
            let (gateway, door) = (Arc::clone(&gateway), door.clone());
            connections.spawn(connection::serve(gateway, stream, peer, door, room.take()));
        }
    }
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
