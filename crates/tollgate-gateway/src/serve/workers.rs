//! The threads that serve requests, each with a runtime of its own.
//!
//! A connection stays on one thread with all that its requests need. Each new connection goes to the
//! thread that has the fewest, so that a few connections keep all threads busy. Everything else runs
//! beside them: listeners, reloads, the admin address and the store.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::proxy::become_worker;

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers(Vec<Worker>);

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) runtime: Handle,
    connections: Arc<()>,
    _end: oneshot::Sender<()>,
}

/// A connection of a worker. It counts until this is dropped: a tunnel lasts longer than the task
/// that has served its request.
#[derive(Debug, Default)]
pub(super) struct Counted {
    _worker: Arc<()>,
}

impl Workers {
    pub(super) fn start(count: usize) -> io::Result<Self> {
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// The worker with the fewest connections.
    pub(super) fn least_busy(&self) -> Option<&Worker> {
        self.0.iter().min_by_key(|worker| Arc::strong_count(&worker.connections))
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
            become_worker(number);
            let _: Result<(), _> = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _end: end })
    }

    pub(super) fn count(&self) -> Counted {
        Counted { _worker: Arc::clone(&self.connections) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::slots::Slots;

    #[tokio::test]
    async fn a_tunnel_counts_for_its_worker_when_the_task_of_its_request_has_ended() {
        let (workers, slots) = (Workers::start(2).unwrap(), Slots::new(9));
        let first = workers.least_busy().unwrap();
        let slot = slots.take(first.count());
        let upgraded = first.runtime.spawn(async { slot }).await.unwrap();
        assert!(!std::ptr::eq(workers.least_busy().unwrap(), first));
        drop(upgraded);
        assert!(std::ptr::eq(workers.least_busy().unwrap(), first));
    }
}
