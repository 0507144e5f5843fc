//! The threads that serve requests, each with a runtime of its own.
//!
//! A connection stays on one thread with all that its requests need. Each new connection goes to the
//! thread that has the fewest, so that a few connections keep all threads busy. Everything else runs
//! beside them: listeners, reloads, the admin address and the store.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;

use pin_project_lite::pin_project;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::proxy::become_worker;

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    _end: oneshot::Sender<()>,
}

impl Workers {
    pub(super) fn start(count: usize) -> io::Result<Self> {
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    pub(super) fn spawn(
        &self,
        tasks: &TaskTracker,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let count = |worker: &&Worker| worker.connections.load(Ordering::Relaxed);
        let Some(worker) = self.0.iter().min_by_key(count) else { return };
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&worker.connections));
        tasks.spawn_on(Counting { task, _counted: counted }, &worker.runtime);
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
}

pin_project! {
    /// A task that counts. An async block would have room for the task twice.
    struct Counting<F> {
        #[pin]
        task: F,
        _counted: Counted,
    }
}

impl<F: Future> Future for Counting<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().task.poll(cx)
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
