//! Connections to one upstream, kept for further requests.
//!
//! Each worker has its own connections, because a connection is cheapest on the thread that serves
//! it. The number of connections is bounded for all workers together.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hyper::client::conn::{http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower_service::Service as _;

use super::client::Connector;
use super::lease::{Kept, Lease, SendError, Sender};
use super::settings::{Protocol, Timeouts};
use super::socket::{Begun, Socket};

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
    pub(super) timeouts: Timeouts,
    /// One for each connection that may be opened, whatever the protocol and the worker.
    permits: Arc<Semaphore>,
    shelves: Box<[Mutex<Shelf>]>,
    waiting: Mutex<VecDeque<oneshot::Sender<Box<Kept>>>>,
    waiters: AtomicUsize,
    /// One connection of HTTP/2 at a time is opened: further requests share it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Shelf {
    kept: VecDeque<Box<Kept>>,
    borrowed: u32,
    is_swept: bool,
}

impl Pool {
    pub(super) fn new(
        protocol: Protocol,
        connector: Connector,
        timeouts: Timeouts,
        permits: Arc<Semaphore>,
        workers: usize,
    ) -> Self {
        Self {
            protocol,
            connector,
            timeouts,
            permits,
            shelves: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
            waiting: Mutex::default(),
            waiters: AtomicUsize::new(0),
            opening: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) async fn lease(self: &Arc<Self>) -> Result<Lease, SendError> {
        let worker = self.worker();
        // Requests that wait already come first.
        if self.waiters.load(Ordering::Relaxed) == 0
            && let Some(kept) = self.take(worker)
        {
            return Ok(self.reused(kept));
        }
        // In a box, as most requests need no room for a connection that is being opened.
        Box::pin(self.lease_slowly(worker)).await
    }

    /// The same where none is at hand.
    async fn lease_slowly(self: &Arc<Self>, worker: usize) -> Result<Lease, SendError> {
        let until = Instant::now() + self.timeouts.connect;
        let _opening = if self.protocol == Protocol::Http2 {
            let opening = timeout_at(until, self.opening.lock());
            let opening = opening.await.map_err(|_| self.no_connection())?;
            if let Some(kept) = self.take(worker) {
                return Ok(self.reused(kept));
            }
            Some(opening)
        } else {
            None
        };
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return self.connect(permit, until, worker).await;
        }
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            waiting.push_back(sender);
            self.waiters.store(waiting.len(), Ordering::Relaxed);
        }
        // A connection may have been returned before this request waited.
        if let Some(kept) = self.take_anywhere(worker) {
            return Ok(self.reused(kept));
        }
        tokio::select! {
            biased;
            Ok(kept) = receiver => Ok(self.reused(kept)),
            lease = self.open(until, worker) => lease,
        }
    }

    pub(super) async fn lease_new(self: &Arc<Self>) -> Result<Lease, SendError> {
        let (until, worker) = (Instant::now() + self.timeouts.connect, self.worker());
        if self.permits.available_permits() == 0 {
            // An idle connection makes room.
            drop(self.take_anywhere(worker));
        }
        self.open(until, worker).await
    }

    async fn open(self: &Arc<Self>, until: Instant, worker: usize) -> Result<Lease, SendError> {
        let permit = timeout_at(until, Arc::clone(&self.permits).acquire_owned()).await;
        match permit {
            Ok(Ok(permit)) => self.connect(permit, until, worker).await,
            _ => Err(SendError::Full),
        }
    }

    const fn no_connection(&self) -> SendError {
        SendError::ConnectTimeout(self.timeouts.connect)
    }

    async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        until: Instant,
        home: usize,
    ) -> Result<Lease, SendError> {
        let connecting = async {
            match &self.connector {
                Connector::Tcp(tcp, server) => {
                    let stream = tcp.clone().call(server.clone()).await?;
                    self.handshake(stream, permit).await
                }
                Connector::Unix(socket) => {
                    self.handshake(TokioIo::new(UnixStream::connect(socket).await?), permit).await
                }
            }
        };
        let connected = timeout_at(until, connecting).await.map_err(|_| self.no_connection())?;
        let (sender, begun) = connected.map_err(SendError::Connect)?;
        let (timer, used_at) = (self.timer(), Instant::now());
        let kept = Box::new(Kept { sender, begun, timer, home, used_at });
        if let Some(shared) = kept.shared(self) {
            self.put(shared);
        }
        Ok(Lease { kept, pool: Arc::clone(self), is_reused: false, busy: None })
    }

    async fn handshake<S: Read + Write + Unpin + Send + 'static>(
        &self,
        stream: S,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Sender, Begun), Box<dyn std::error::Error + Send + Sync>> {
        let (io, begun) = Socket::new(stream, self.protocol, permit);
        let sender = match self.protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                let handshake = builder.max_buf_size(HEAD_BYTES).handshake(io);
                let (sender, connection) = handshake.await?;
                tokio::spawn(connection.with_upgrades());
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_BYTES)
                    .initial_connection_window_size(CONNECTION_BYTES);
                let (sender, connection) = builder.handshake(io).await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Ok((sender, begun))
    }

    pub(super) fn timer(&self) -> Pin<Box<Sleep>> {
        Box::pin(sleep(self.timeouts.response))
    }

    fn reused(self: &Arc<Self>, kept: Box<Kept>) -> Lease {
        Lease { kept, pool: Arc::clone(self), is_reused: true, busy: None }
    }

    fn worker(&self) -> usize {
        WORKER.get() % self.shelves.len()
    }

    /// A connection of this worker, or of another one that has more than it uses.
    ///
    /// A worker that borrows often gets a connection of its own instead: one that belongs to another
    /// thread costs more with each request.
    fn take(&self, worker: usize) -> Option<Box<Kept>> {
        let may_borrow = {
            let mut shelf = self.shelves[worker].lock();
            if let Some(kept) = shelf.take(self) {
                return Some(kept);
            }
            shelf.borrowed = (shelf.borrowed + 1) % BORROWED;
            shelf.borrowed > 0
        };
        if may_borrow { self.take_anywhere(worker) } else { None }
    }

    fn take_anywhere(&self, worker: usize) -> Option<Box<Kept>> {
        let (after, before) = (worker..self.shelves.len(), 0..worker);
        after.chain(before).find_map(|other| self.shelves[other].lock().take(self))
    }

    pub(super) fn put(self: &Arc<Self>, kept: Box<Kept>) {
        let home = kept.home;
        {
            let mut shelf = self.shelves[home].lock();
            shelf.kept.push_back(kept);
            if !shelf.is_swept {
                shelf.is_swept = true;
                tokio::spawn(sweep(Arc::downgrade(self), home));
            }
        }
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.hand_over(home);
        }
    }

    fn hand_over(&self, worker: usize) {
        let mut waiting = self.waiting.lock();
        while let Some(waiter) = waiting.pop_front() {
            if waiter.is_closed() {
                continue;
            }
            let Some(kept) = self.take_anywhere(worker) else {
                waiting.push_front(waiter);
                break;
            };
            // If the request has left at this moment, the connection is closed.
            let _ = waiter.send(kept);
        }
        self.waiters.store(waiting.len(), Ordering::Relaxed);
    }
}

async fn sweep(pool: Weak<Pool>, worker: usize) {
    loop {
        let due = {
            let Some(pool) = pool.upgrade() else { return };
            let mut shelf = pool.shelves[worker].lock();
            let (idle, now) = (pool.timeouts.pool, Instant::now());
            while shelf.kept.front().is_some_and(|kept| kept.used_at + idle <= now) {
                shelf.kept.pop_front();
            }
            match shelf.kept.front() {
                Some(kept) => kept.used_at + idle,
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
    /// The connection that was used last: the others may end when they are not needed.
    fn take(&mut self, pool: &Pool) -> Option<Box<Kept>> {
        loop {
            let last = self.kept.back_mut()?;
            if last.is_closed() {
                self.kept.pop_back();
            } else if let Some(shared) = last.shared(pool) {
                last.used_at = shared.used_at;
                return Some(shared);
            } else {
                return self.kept.pop_back();
            }
        }
    }
}

const HEAD_BYTES: usize = 64 << 10;

/// How much of one response over HTTP/2 waits here for a client that reads slowly.
const STREAM_BYTES: u32 = 256 << 10;

/// As much as HTTP/2 knows, so that only the window of a stream ever is used up. All requests
/// share the connection: if it had a window to fill, one client that does not read would hold
/// up the responses of all others.
const CONNECTION_BYTES: u32 = (1 << 31) - 1;

/// A worker opens a connection of its own when it has borrowed this number of times.
const BORROWED: u32 = 32;

#[cfg(test)]
mod tests;
