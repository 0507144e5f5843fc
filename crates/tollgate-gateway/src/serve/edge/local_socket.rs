//! A Unix socket for programs on the same machine. Who may connect, its file's permissions say.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;
use tollgate::observe::Inspect;
use tollgate_config::plan::Front;

use super::connection;
use super::listener::rest;
use super::slots::Slots;
use super::workers::Workers;
use crate::serve::gateway::Gateway;

/// A bound socket, whose file is removed when this is dropped.
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalSocket {
    /// Binds a socket that its owner and its group may use. Replaces the file of a process that has
    /// not removed it.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let is_socket = |path: &Path| fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket(path) && UnixStream::connect(path).is_err() {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let socket = Self { listener, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
        Ok(socket)
    }

    /// Accepts connections until the gateway drains.
    pub(crate) async fn accept<St: Inspect>(
        self,
        gateway: Arc<Gateway<St>>,
        front: Front,
        workers: &Workers,
        connections: TaskTracker,
    ) {
        let slots = Slots::new(MOST);
        loop {
            let accepted = tokio::select! {
                // First, because a busy listener would otherwise never reach the drain.
                biased;
                _ = gateway.draining.wait() => return,
                accepted = async {
                    slots.free(|| MOST).await;
                    self.listener.accept().await
                } => accepted,
            };
            // The stream moves to a worker's runtime.
            match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => {
                    let Some(worker) = workers.least_busy() else { return };
                    let slot = slots.take(worker.count());
                    let serving =
                        connection::serve_local(Arc::clone(&gateway), stream, slot, front);
                    connections.spawn_on(serving, &worker.runtime);
                }
                Err(error) => rest(&error).await,
            }
        }
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        // Nobody waits for the result, and the next process replaces the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// The most connections.
const MOST: usize = 4096;
