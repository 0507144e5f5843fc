//! A pool's idle connections, and the requests that wait for a connection.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::settings::{Connections, Protocol};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep_until};

use super::super::connection::{PooledConnection, RequestSender};
use super::super::connector::Connector;
use super::super::private::Private;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

pub fn become_worker(number: usize) {
    WORKER.set(number);
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) protocol: Protocol,
    pub(super) connector: Connector,
    pub(super) settings: Connections,
    /// A permit for each connection that may be opened, for all protocols and workers.
    pub(super) permits: Arc<Semaphore>,
    shelves: Box<[Mutex<Shelf>]>,
    waiting: Mutex<VecDeque<oneshot::Sender<Box<PooledConnection>>>>,
    pub(super) waiters: AtomicUsize,
    pub(super) private: Private,
    /// Serializes the opening of HTTP/2 connections, because requests share them.
    pub(super) opening: Arc<tokio::sync::Mutex<()>>,
    /// The number of HTTP/2 connections that accept requests.
    pub(super) open: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Shelf {
    idle: VecDeque<Box<PooledConnection>>,
    borrowed: u32,
    is_swept: bool,
}

impl Pool {
    pub(in super::super) fn new(
        protocol: Protocol,
        connector: Connector,
        settings: Connections,
        permits: Arc<Semaphore>,
        workers: usize,
    ) -> Self {
        Self {
            protocol,
            connector,
            settings,
            permits,
            shelves: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
            waiting: Mutex::default(),
            waiters: AtomicUsize::new(0),
            private: Private::default(),
            opening: Arc::default(),
            open: Arc::default(),
        }
    }

    pub(super) fn worker(&self) -> usize {
        WORKER.get() % self.shelves.len()
    }

    /// A connection from this worker, or from another worker that has more than it uses.
    ///
    /// A worker that borrows often opens its own connection instead, because a connection that
    /// belongs to another thread costs more with each request.
    pub(super) fn take(&self, worker: usize) -> Option<Box<PooledConnection>> {
        let may_borrow = {
            let mut shelf = self.shelves[worker].lock();
            if let Some(connection) = shelf.take() {
                return Some(connection);
            }
            shelf.borrowed = (shelf.borrowed + 1) % BORROWED;
            shelf.borrowed > 0
        };
        if may_borrow { self.take_anywhere(worker) } else { None }
    }

    pub(super) fn take_anywhere(&self, worker: usize) -> Option<Box<PooledConnection>> {
        let (after, before) = (worker..self.shelves.len(), 0..worker);
        after.chain(before).find_map(|other| self.shelves[other].lock().take())
    }

    /// Stores an idle connection for its worker, or for a request that waits.
    pub(super) fn put_idle(self: &Arc<Self>, connection: Box<PooledConnection>) {
        let home = connection.home;
        {
            let mut shelf = self.shelves[home].lock();
            shelf.idle.push_back(connection);
            if !shelf.is_swept {
                shelf.is_swept = true;
                tokio::spawn(sweep(Arc::downgrade(self), home));
            }
        }
        if self.has_waiters() {
            self.hand_over(home);
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    pub(super) fn queue(&self) -> oneshot::Receiver<Box<PooledConnection>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.push_back(sender);
        self.waiters.store(waiting.len(), Ordering::Relaxed);
        receiver
    }

    /// Removes requests from the queue that no longer wait.
    pub(super) fn leave_queue(&self) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|waiter| !waiter.is_closed());
        self.waiters.store(waiting.len(), Ordering::Relaxed);
    }

    fn hand_over(&self, worker: usize) {
        // Declared before the lock and dropped after it, because a dropped stream may take it.
        let mut unused = Vec::new();
        let mut waiting = self.waiting.lock();
        while let Some(waiter) = waiting.pop_front() {
            if waiter.is_closed() {
                continue;
            }
            let Some(connection) = self.take_anywhere(worker) else {
                waiting.push_front(waiter);
                break;
            };
            // If the request has left at this moment, the connection or the stream is closed.
            unused.extend(waiter.send(connection).err());
        }
        self.waiters.store(waiting.len(), Ordering::Relaxed);
    }
}

async fn sweep(pool: Weak<Pool>, worker: usize) {
    loop {
        let due = {
            let Some(pool) = pool.upgrade() else { return };
            let mut shelf = pool.shelves[worker].lock();
            let (idle, now) = (pool.settings.idle, Instant::now());
            while shelf.idle.front().is_some_and(|connection| connection.used_at + idle <= now) {
                shelf.idle.pop_front();
            }
            match shelf.idle.front() {
                Some(connection) => connection.used_at + idle,
                None => {
                    shelf.is_swept = false;
                    return;
                }
            }
        };
        sleep_until(due).await;
    }
}

impl Shelf {
    /// The most recently used connection, so the other connections can close when they are not
    /// needed.
    fn take(&mut self) -> Option<Box<PooledConnection>> {
        loop {
            let mut connection = self.idle.pop_back()?;
            if connection.is_closed() {
                continue;
            }
            let RequestSender::Http2(sender, streams) = &connection.sender else {
                return Some(connection);
            };
            let (streams, used_at) = (Arc::clone(streams), Instant::now());
            if used_at >= connection.expires_at {
                streams.retire();
                continue;
            }
            let one = streams.begin().map(|stream| {
                Box::new(PooledConnection {
                    sender: RequestSender::Http2(sender.clone(), Arc::clone(&streams)),
                    begun: connection.begun.clone(),
                    timer: None,
                    home: connection.home,
                    used_at,
                    expires_at: connection.expires_at,
                    owner: None,
                    _stream: Some(stream),
                })
            });
            connection.used_at = used_at;
            self.idle.extend(streams.park(connection));
            if one.is_some() {
                return one;
            }
        }
    }
}

/// How often a worker borrows before it opens its own connection.
pub(super) const BORROWED: u32 = 32;
