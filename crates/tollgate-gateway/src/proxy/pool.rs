//! Connections to one upstream, kept for further requests.
//!
//! Each worker has its own connections, because a connection is cheapest on the thread that serves
//! it. The number of connections is bounded for all workers together.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower_service::Service as _;

use super::body::{Sent, Upload};
use super::client::Connector;
use super::group::Busy;
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
    timeouts: Timeouts,
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

/// A connection that no request uses; over HTTP/2, any number of requests.
#[derive(Debug)]
struct Kept {
    sender: Sender,
    begun: Begun,
    /// Set again only when it ends: most requests are answered long before.
    timer: Pin<Box<Sleep>>,
    home: usize,
    used_at: Instant,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Sent>),
    Http2(http2::SendRequest<Sent>),
}

#[derive(Debug)]
pub(crate) struct Lease {
    /// In a box, because it moves with the body of the response.
    kept: Box<Kept>,
    pool: Arc<Pool>,
    /// Whether it has carried other requests, so that the upstream may be closing it now.
    is_reused: bool,
    /// Where servers share requests by what they have to do.
    busy: Option<Busy>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The upstream has as many connections as it may have, and none became free in time.
    #[error("all connections to the upstream are in use")]
    Full,
    #[error("no connection within {0:?}")]
    ConnectTimeout(std::time::Duration),
    #[error("no connection: {0}")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("no response within {0:?}")]
    Silence(std::time::Duration),
}

pub(super) struct Unanswered {
    pub(super) error: SendError,
    /// The request, if not a byte of it was sent.
    pub(super) unsent: Option<Request<Sent>>,
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

    fn timer(&self) -> Pin<Box<Sleep>> {
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

    fn put(self: &Arc<Self>, kept: Box<Kept>) {
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

impl Kept {
    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    /// The same connection for one more request, if several may use it at once.
    fn shared(&self, pool: &Pool) -> Option<Box<Self>> {
        let Sender::Http2(sender) = &self.sender else { return None };
        Some(Box::new(Self {
            sender: Sender::Http2(sender.clone()),
            begun: self.begun.clone(),
            timer: pool.timer(),
            home: self.home,
            used_at: Instant::now(),
        }))
    }
}

impl Lease {
    pub(super) const fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Counts as a request under way until the response ends.
    pub(super) fn counting(&mut self, busy: Option<Busy>) {
        self.busy = busy;
    }

    pub(super) const fn take_busy(&mut self) -> Option<Busy> {
        self.busy.take()
    }

    /// Whether the upstream had begun to answer the request that failed.
    pub(super) fn has_begun(&self) -> bool {
        self.kept.begun.get()
    }

    /// Sends a request. The time limit of the response begins now, and again with each piece of
    /// `upload`.
    pub(super) async fn send(
        &mut self,
        request: Request<Sent>,
        upload: Option<&Upload>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let (timer, limit) = (&mut self.kept.timer, self.pool.timeouts.response);
        match &mut self.kept.sender {
            Sender::Http1(sender) => {
                answered(sender.try_send_request(request), timer, limit, upload).await
            }
            Sender::Http2(sender) => {
                answered(sender.try_send_request(request), timer, limit, upload).await
            }
        }
    }

    /// Keeps the connection for other requests. Without this, it ends with the lease.
    pub(super) fn release(mut self) {
        let Sender::Http1(sender) = &mut self.kept.sender else { return };
        if sender.is_ready() {
            self.keep();
        } else if !sender.is_closed() {
            // The end of the response has not reached the connection.
            tokio::spawn(async move {
                if let Sender::Http1(sender) = &mut self.kept.sender
                    && sender.ready().await.is_ok()
                {
                    self.keep();
                }
            });
        }
    }

    fn keep(self) {
        let Self { mut kept, pool, .. } = self;
        kept.used_at = Instant::now();
        pool.put(kept);
    }
}

async fn answered(
    sending: impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Sent>>>>,
    timer: &mut Pin<Box<Sleep>>,
    limit: std::time::Duration,
    upload: Option<&Upload>,
) -> Result<Response<Incoming>, Unanswered> {
    let sent = Instant::now();
    let mut sending = std::pin::pin!(sending);
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = sending.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(|mut error| Unanswered {
                    unsent: error.take_message(),
                    error: error.into_error().into(),
                }));
            }
            std::task::ready!(timer.as_mut().poll(cx));
            let begun = upload.map_or(sent, |upload| upload.complete_since().max(sent));
            if begun + limit <= Instant::now() {
                let error = SendError::Silence(limit);
                return Poll::Ready(Err(Unanswered { error, unsent: None }));
            }
            timer.as_mut().reset(begun + limit);
        }
    })
    .await
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
mod tests {
    use std::time::Duration;

    use http::uri::Scheme;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::proxy::{Clients, Endpoint};

    const LONG: Duration = Duration::from_secs(60);

    /// An event that a server sees.
    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Opened,
        Closed,
    }

    /// The pool of a server with at most `most` connections, and the events that the server sees.
    async fn pool(
        most: usize,
        workers: usize,
        idle: Duration,
    ) -> (Arc<Pool>, mpsc::UnboundedReceiver<Seen>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
        let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
        let (sees, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sees = sees.clone();
                sees.send(Seen::Opened).unwrap();
                tokio::spawn(async move {
                    while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        stream.write_all(answer).await.unwrap();
                    }
                    let _ = sees.send(Seen::Closed);
                });
            }
        });
        let timeouts =
            Timeouts { connect: LONG, response: LONG, body: LONG, tunnel: LONG, pool: idle };
        let clients = Clients::new(timeouts, false, most, workers).unwrap();
        (clients.pool(&endpoint, Protocol::Http1).unwrap(), seen)
    }

    async fn use_once(mut lease: Lease) {
        let mut request = Request::new(Sent::default());
        request.headers_mut().insert("host", http::HeaderValue::from_static("a"));
        let Ok(response) = lease.send(request, None).await else { panic!("no response") };
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        lease.release();
    }

    #[tokio::test]
    async fn a_request_waits_for_a_connection_that_another_request_uses() {
        let (pool, mut seen) = pool(1, 1, LONG).await;
        let first = pool.lease().await.unwrap();
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { use_once(pool.lease().await.unwrap()).await }
        });
        while pool.waiters.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        use_once(first).await;
        waiting.await.unwrap();
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        assert!(seen.try_recv().is_err(), "one connection was enough");
    }

    #[tokio::test]
    async fn a_connection_that_ends_makes_room_for_another_one() {
        let (pool, mut seen) = pool(1, 1, LONG).await;
        let first = pool.lease().await.unwrap();
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { use_once(pool.lease().await.unwrap()).await }
        });
        while pool.waiters.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        drop(first);
        waiting.await.unwrap();
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        let rest = [seen.recv().await, seen.recv().await];
        assert!(rest.contains(&Some(Seen::Closed)) && rest.contains(&Some(Seen::Opened)));
        // The connection that is kept makes room for a request that needs a new one.
        drop(pool.lease_new().await.unwrap());
    }

    #[tokio::test]
    async fn a_worker_that_borrows_often_gets_a_connection_of_its_own() {
        let (pool, mut seen) = pool(10, 2, LONG).await;
        use_once(pool.lease().await.unwrap()).await;
        become_worker(1);
        for _ in 1..BORROWED {
            use_once(pool.lease().await.unwrap()).await;
        }
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        assert!(seen.try_recv().is_err());
        for _ in 0..2 * BORROWED {
            use_once(pool.lease().await.unwrap()).await;
        }
        become_worker(0);
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        assert!(seen.try_recv().is_err(), "it uses its own");
    }

    #[tokio::test]
    async fn a_connection_that_is_not_used_is_closed() {
        let (pool, mut seen) = pool(10, 1, Duration::from_millis(50)).await;
        use_once(pool.lease().await.unwrap()).await;
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        assert_eq!(seen.recv().await, Some(Seen::Closed));
        use_once(pool.lease().await.unwrap()).await;
        assert_eq!(seen.recv().await, Some(Seen::Opened));
    }
}
