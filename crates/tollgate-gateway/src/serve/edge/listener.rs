use std::io;
#[cfg(test)]
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tollgate::observe::Inspect;

use super::connection;
use super::listener_settings::{ListenerKey, ListenerSettings};
use super::slots::Slots;
use super::workers::Workers;
use crate::serve::gateway::Gateway;

/// Accepts connections until the gateway drains, and then the connections in the backlog, because
/// their clients already see an open connection.
pub(crate) async fn accept<St: Inspect>(
    gateway: Arc<Gateway<St>>,
    listener: TcpListener,
    key: ListenerKey,
    mut settings: ListenerSettings,
    workers: &Workers,
    connections: TaskTracker,
) {
    let slots = Slots::new(settings.most);
    let serve = |stream, peer, settings: &ListenerSettings| {
        let Some(worker) = workers.least_busy() else { return };
        let (gateway, settings) = (Arc::clone(&gateway), settings.clone());
        let slot = slots.take(worker.count());
        let serving = connection::serve(gateway, stream, peer, settings, slot);
        connections.spawn_on(serving, &worker.runtime);
    };
    // A listener that is missing in the new configuration keeps its old settings.
    let changed = || gateway.app().listeners.get(&key).cloned();
    loop {
        let most = || changed().map_or(settings.most, |settings| settings.most);
        let accepted = tokio::select! {
            // First, because a busy listener would otherwise never reach the drain.
            biased;
            _ = gateway.draining.wait() => break,
            accepted = async {
                slots.free(most).await;
                listener.accept().await
            } => accepted,
        };
        // The stream moves to a worker's runtime.
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                settings = changed().unwrap_or(settings);
                serve(stream, peer, &settings);
            }
            Err(error) => rest(&error).await,
        }
    }
    let Ok(listener) = listener.into_std() else { return };
    for (stream, peer) in waiting(|| listener.accept()).take_while(|_| !slots.is_full()) {
        if stream.set_nonblocking(true).is_ok() {
            serve(stream, peer, &settings);
        }
    }
}

/// The connections in the backlog, which the system would reset when the socket is closed.
///
/// Calls the system instead of tokio, because tokio's readiness may be out of date.
pub(super) fn waiting<T>(accept: impl Fn() -> io::Result<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || {
        loop {
            match accept() {
                Ok(accepted) => return Some(accepted),
                Err(error) if is_gone(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => {
                    tracing::error!(%error, "connections in the backlog are lost");
                    return None;
                }
            }
        }
    })
}

/// Pauses after a failed accept, unless only the client had disconnected. If the system is out of
/// resources, an immediate retry would only waste processor time.
pub(crate) async fn rest(error: &io::Error) {
    if is_gone(error) {
        return;
    }
    tracing::error!(%error, "cannot accept a connection; raise the limit on open files (ulimit -n)");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn backlog_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        let listener = listener.into_std().unwrap();
        assert_eq!(waiting(|| listener.accept()).count(), 3);
    }
}
