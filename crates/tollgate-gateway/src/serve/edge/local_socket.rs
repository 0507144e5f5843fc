//! A Unix socket for programs on the same machine. Who may connect, its file's permissions say.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tollgate::observe::Inspect;
use tollgate_config::plan::Front;

use super::connection;
use super::listener::{rest, waiting};
use super::slots::Slots;
use super::workers::Workers;
use crate::serve::gateway::Gateway;

/// A bound socket.
pub(crate) struct LocalSocket {
    listener: UnixListener,
    _file: SocketFile,
}

/// The socket's file, which is removed when this is dropped, unless another process has replaced it.
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl LocalSocket {
    /// Binds a socket that its owner and its group may use. Replaces the file of a process that has
    /// not removed it.
    pub(crate) async fn bind(path: &Path) -> io::Result<Self> {
        let is_socket = |path: &Path| fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket(path) && is_abandoned(path).await {
            fs::remove_file(path)?;
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile { path: path.to_owned(), inode: inode(path)? };
        // Before the socket listens, nobody can connect.
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
        Ok(Self { listener: socket.listen(BACKLOG)?, _file: file })
    }

    /// Accepts connections until the gateway drains, and then the connections in the backlog.
    pub(crate) async fn accept<St: Inspect>(
        self,
        gateway: Arc<Gateway<St>>,
        front: Front,
        workers: &Workers,
        connections: TaskTracker,
    ) {
        let slots = Slots::new(MOST);
        let serve = |stream| {
            let Some(worker) = workers.least_busy() else { return };
            let slot = slots.take(worker.count());
            let serving = connection::serve_local(Arc::clone(&gateway), stream, slot, front);
            connections.spawn_on(serving, &worker.runtime);
        };
        loop {
            let accepted = tokio::select! {
                // First, because a busy listener would otherwise never reach the drain.
                biased;
                _ = gateway.draining.wait() => break,
                accepted = async {
                    slots.free(|| MOST).await;
                    self.listener.accept().await
                } => accepted,
            };
            // The stream moves to a worker's runtime.
            match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => serve(stream),
                Err(error) => rest(&error).await,
            }
        }
        let Ok(listener) = self.listener.into_std() else { return };
        for (stream, _) in waiting(|| listener.accept()).take_while(|_| !slots.is_full()) {
            if stream.set_nonblocking(true).is_ok() {
                serve(stream);
            }
        }
    }
}

/// Whether no process listens. If the file cannot be reached, or does not answer, one may.
async fn is_abandoned(path: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let connected = timeout(Duration::from_secs(1), UnixStream::connect(path)).await;
    connected.is_ok_and(|connected| connected.is_err_and(refused))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Nobody waits for the result, and the next process replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The most connections, and the most that wait in the backlog.
const MOST: usize = 4096;
const BACKLOG: u32 = 1024;
