//! The threads that serve requests, each with its own runtime.
//!
//! A connection and everything its requests need stay on one thread. New connections are assigned
//! to the thread with the fewest connections, so even a few connections keep all threads busy.
//! Listeners, reloads, the admin address and the store run beside them.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use tollgate_proxy::become_worker;

/// The threads, which exit when this is dropped.
#[derive(Debug)]
pub(crate) struct Workers(Vec<Worker>);

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) runtime: Handle,
    connections: Arc<()>,
    _end: oneshot::Sender<()>,
}

/// Counts a worker's connection until this is dropped, because a tunnel outlives the task that
/// served its request.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    _worker: Arc<()>,
}

impl Workers {
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    pub(crate) fn least_busy(&self) -> Option<&Worker> {
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

    pub(crate) fn count(&self) -> Counted {
        Counted { _worker: Arc::clone(&self.connections) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::edge::slots::Slots;

    #[tokio::test]
    async fn tunnel_outlives_its_requests_task() {
        let (workers, slots) = (Workers::start(2).unwrap(), Slots::new(9));
        let first = workers.least_busy().unwrap();
        let slot = slots.take(first.count());
        let upgraded = first.runtime.spawn(async { slot }).await.unwrap();
        assert!(!std::ptr::eq(workers.least_busy().unwrap(), first));
        drop(upgraded);
        assert!(std::ptr::eq(workers.least_busy().unwrap(), first));
    }
}
