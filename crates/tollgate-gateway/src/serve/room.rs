//! How many connections a listener has, and how many it may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The connections of a listener. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Room(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    taken: AtomicUsize,
    /// As the configuration that serves has it.
    most: AtomicUsize,
    /// Somebody has left.
    left: Notify,
    warned_at: Mutex<Option<Instant>>,
}

impl Room {
    /// Completes when there is room for another connection; at once if there is. `most` is
    /// asked again and again, as a reload may change it.
    pub(super) async fn free(&self, most: impl Fn() -> usize) {
        self.0.most.store(most(), Ordering::Relaxed);
        if !self.is_full() {
            return;
        }
        counter!(FULL).increment(1);
        self.warn();
        while self.is_full() {
            // The outcome is in the numbers.
            let _ = timeout(AGAIN, self.0.left.notified()).await;
            self.0.most.store(most(), Ordering::Relaxed);
        }
    }

    /// Takes a place; it is given back when what is returned is dropped.
    pub(super) fn take(&self) -> Place {
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        gauge!(CONNECTIONS).increment(1);
        Place(self.clone())
    }

    /// Whether another connection has to wait until one ends.
    pub(super) fn is_full(&self) -> bool {
        self.0.taken.load(Ordering::Relaxed) >= self.0.most.load(Ordering::Relaxed)
    }

    /// A flood of connections is no reason for one of lines.
    fn warn(&self) {
        let now = Instant::now();
        let mut warned_at = self.0.warned_at.lock();
        if warned_at.is_some_and(|at| now - at < QUIET) {
            return;
        }
        *warned_at = Some(now);
        let most = self.0.most.load(Ordering::Relaxed);
        tracing::warn!(
            "{most} connections are open, as many as `maxConnections` allows: others wait"
        );
    }
}

/// A place of a connection.
#[derive(Debug)]
pub(super) struct Place(Room);

impl Place {
    /// Whether others wait for a place.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.is_full()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        gauge!(CONNECTIONS).decrement(1);
        self.0.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.0.left.notify_one();
    }
}

pub(super) const CONNECTIONS: &str = "tollgate_gateway_connections";
pub(super) const FULL: &str = "tollgate_gateway_full_total";

/// How long another `maxConnections` may go unnoticed.
const AGAIN: Duration = Duration::from_secs(1);

/// Between two warnings.
const QUIET: Duration = Duration::from_secs(10);

/// Lets this process have as many files open as the system allows it: the limit that processes
/// begin with is meant for programs that wait with `select`. Says so where that is too few.
#[cfg(unix)]
pub(super) fn open_files(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let files = if raised.is_ok() { maximum } else { current };
    // Each client may need a connection to an upstream as well.
    if let Some(files) = files.filter(|files| *files < 2 * connections as u64) {
        tracing::warn!(
            "{files} files may be open, and {connections} connections need up to {}; raise the \
             limit (`ulimit -Hn`), or lower `maxConnections`",
            2 * connections
        );
    }
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(super) fn open_files(_: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_waits_until_somebody_leaves_or_there_is_more() {
        let room = Room::default();
        let places: Vec<_> = (0..2).map(|_| room.take()).collect();
        room.free(|| 3).await;
        assert!(!places[0].is_wanted());
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.free(|| 2).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished() && places[0].is_wanted());
        drop(places);
        waiting.await.unwrap();

        let _place = room.take();
        let asked_at = Instant::now();
        room.free(|| if asked_at.elapsed() < Duration::from_secs(5) { 1 } else { 2 }).await;
        assert!(asked_at.elapsed() >= Duration::from_secs(5));
    }
}
