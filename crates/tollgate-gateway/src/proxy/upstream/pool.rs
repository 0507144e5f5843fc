//! Connections to one upstream. Idle connections are reused.
//!
//! Each worker has its own connections, because a connection is cheapest on the thread that serves
//! it. The number of connections is limited over all workers.

mod open;
mod owned;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use tollgate_config::plan::upstream::{Connections, Protocol};

use super::checkout::{Checkout, SendError};
use super::connection::{ConnectionPool, PooledConnection, RequestSender};
use super::connector::Connector;
use super::private::Private;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn become_worker(number: usize) {
    WORKER.set(number);
}

#[derive(Debug)]
pub(crate) struct Pool {
    protocol: Protocol,
    connector: Connector,
    settings: Connections,
    /// A permit for each connection that may be opened, for all protocols and workers.
    permits: Arc<Semaphore>,
    shelves: Box<[Mutex<Shelf>]>,
    waiting: Mutex<VecDeque<oneshot::Sender<Box<PooledConnection>>>>,
    waiters: AtomicUsize,
    private: Private,
    /// Serializes the opening of HTTP/2 connections, because requests share them.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// The number of HTTP/2 connections that accept requests.
    open: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Shelf {
    idle: VecDeque<Box<PooledConnection>>,
    borrowed: u32,
    is_swept: bool,
}

impl Pool {
    pub(super) fn new(
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

    pub(crate) async fn checkout(self: &Arc<Self>) -> Result<Checkout, SendError> {
        let worker = self.worker();
        // Requests that already wait have precedence.
        let is_first = !self.has_waiters();
        if is_first && let Some(connection) = self.take(worker) {
            return Ok(self.reused(connection));
        }
        // Boxed, because most requests find an open connection and need no memory for opening it.
        match self.protocol {
            Protocol::Http1 => Box::pin(self.checkout_slowly(worker)).await,
            Protocol::Http2 => Box::pin(self.checkout_stream(worker, is_first)).await,
        }
    }

    /// The same if no idle connection is available.
    async fn checkout_slowly(self: &Arc<Self>, worker: usize) -> Result<Checkout, SendError> {
        let until = Instant::now() + self.settings.timeout;
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(self.fresh(self.connect(permit, until, worker).await?));
        }
        let receiver = self.queue();
        self.private.evict();
        // A connection may have been returned before this request waited.
        if let Some(connection) = self.take_anywhere(worker) {
            return Ok(self.reused(connection));
        }
        tokio::select! {
            biased;
            Ok(connection) = receiver => Ok(self.reused(connection)),
            connection = self.open(until, worker) => Ok(self.fresh(connection?)),
        }
    }

    /// Waits for a stream of an HTTP/2 connection. While all streams are in use, this opens
    /// another connection, and also accepts a stream that another request releases.
    async fn checkout_stream(
        self: &Arc<Self>,
        worker: usize,
        is_first: bool,
    ) -> Result<Checkout, SendError> {
        let until = Instant::now() + self.settings.timeout;
        let is_full = || self.permits.available_permits() == 0;
        let mut opening = None;
        // If no other request waits, either all streams are in use, or this worker has borrowed
        // so often that it should have its own connection.
        if is_first
            && !is_full()
            && let Ok(turn) = Arc::clone(&self.opening).try_lock_owned()
        {
            opening = Some(self.open_shared(turn, until, worker));
        }
        if let Some(connection) = self.take_anywhere(worker) {
            return Ok(self.reused(connection));
        }
        let mut receiver = self.queue();
        // Another request may have released a stream before this request was in the queue.
        if let Some(connection) = self.take_anywhere(worker) {
            drop(receiver);
            self.leave_queue();
            return Ok(self.reused(connection));
        }
        loop {
            let opened = async {
                match opening.take() {
                    Some(opening) => opening.await,
                    None => {
                        let turn = Arc::clone(&self.opening).lock_owned().await;
                        self.open_shared(turn, until, worker).await
                    }
                }
            };
            let failed = tokio::select! {
                biased;
                Ok(connection) = &mut receiver => return Ok(self.reused(connection)),
                opened = timeout_at(until, opened) => match opened {
                    Ok(Ok(Ok(()))) => continue,
                    Ok(Ok(Err(error))) => error,
                    _ if is_full() => SendError::Full,
                    _ => self.no_connection(),
                },
            };
            if self.open.load(Ordering::Relaxed) == 0 {
                return Err(failed);
            }
            // The server accepts no more connections, but a request may still release a stream.
            return match timeout_at(until, receiver).await {
                Ok(Ok(connection)) => Ok(self.reused(connection)),
                _ => Err(failed),
            };
        }
    }

    /// Opens a connection that only this request uses.
    pub(super) async fn checkout_new(self: &Arc<Self>) -> Result<Checkout, SendError> {
        let (until, worker) = (Instant::now() + self.settings.timeout, self.worker());
        if self.permits.available_permits() == 0 {
            if self.protocol == Protocol::Http2 {
                return self.checkout().await;
            }
            // Closing an idle connection makes room.
            match self.take_anywhere(worker) {
                Some(connection) => drop(connection),
                None => self.private.evict(),
            }
        }
        Ok(self.fresh(self.open(until, worker).await?))
    }

    fn fresh(self: &Arc<Self>, connection: Box<PooledConnection>) -> Checkout {
        self.checked_out(connection, false)
    }

    fn reused(self: &Arc<Self>, connection: Box<PooledConnection>) -> Checkout {
        let is_reused = match &connection.sender {
            RequestSender::Http1(_) => true,
            RequestSender::Http2(_, streams) => streams.has_answered(),
        };
        self.checked_out(connection, is_reused)
    }

    fn checked_out(
        self: &Arc<Self>,
        connection: Box<PooledConnection>,
        is_reused: bool,
    ) -> Checkout {
        let pool: Arc<Self> = Arc::clone(self);
        Checkout::new(connection, pool, is_reused)
    }

    fn downgraded(self: &Arc<Self>) -> Weak<dyn ConnectionPool> {
        let pool: Weak<Self> = Arc::downgrade(self);
        pool
    }

    fn worker(&self) -> usize {
        WORKER.get() % self.shelves.len()
    }

    /// A connection from this worker, or from another worker that has more than it uses.
    ///
    /// A worker that borrows often opens its own connection instead, because a connection that
    /// belongs to another thread costs more with each request.
    fn take(&self, worker: usize) -> Option<Box<PooledConnection>> {
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

    fn take_anywhere(&self, worker: usize) -> Option<Box<PooledConnection>> {
        let (after, before) = (worker..self.shelves.len(), 0..worker);
        after.chain(before).find_map(|other| self.shelves[other].lock().take())
    }

    fn put(self: &Arc<Self>, connection: Box<PooledConnection>) {
        if let Some(owner) = connection.owner.clone() {
            return self.put_private(&owner, connection);
        }
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

    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    fn queue(&self) -> oneshot::Receiver<Box<PooledConnection>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.push_back(sender);
        self.waiters.store(waiting.len(), Ordering::Relaxed);
        receiver
    }

    /// Removes requests from the queue that no longer wait.
    fn leave_queue(&self) {
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

impl ConnectionPool for Pool {
    fn put(self: Arc<Self>, connection: Box<PooledConnection>) {
        Self::put(&self, connection);
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
const BORROWED: u32 = 32;

#[cfg(test)]
mod tests;
