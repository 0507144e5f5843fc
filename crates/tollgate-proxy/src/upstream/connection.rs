//! A connection to an upstream, and the streams of an HTTP/2 connection.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hyper::client::conn::{http1, http2};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::socket::Begun;
use crate::body::sent::Sent;
use crate::head::connection::Connection;

/// An idle connection, or a stream on an HTTP/2 connection.
#[derive(Debug)]
pub(super) struct PooledConnection {
    pub(super) sender: RequestSender,
    pub(super) begun: Begun,
    /// The response timeout. Reset only when it fires or would fire too late, because most
    /// responses arrive long before.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
    pub(super) home: usize,
    pub(super) used_at: Instant,
    pub(super) expires_at: Instant,
    /// The client connection that has authenticated this connection, so it serves no other client.
    pub(super) owner: Option<Weak<Connection>>,
    /// The request's stream. `None` in the pool.
    pub(super) _stream: Option<Stream>,
}

#[derive(Debug)]
pub(super) enum RequestSender {
    Http1(http1::SendRequest<Sent>),
    Http2(http2::SendRequest<Sent>, Arc<Streams>),
}

/// Where a connection returns after a request.
pub(super) trait ConnectionPool: Debug + Send + Sync {
    fn put(self: Arc<Self>, connection: Box<PooledConnection>);
}

impl PooledConnection {
    pub(super) fn streams(&self) -> Option<Arc<Streams>> {
        match &self.sender {
            RequestSender::Http1(_) => None,
            RequestSender::Http2(_, streams) => Some(Arc::clone(streams)),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            RequestSender::Http1(sender) => sender.is_closed(),
            RequestSender::Http2(sender, streams) => sender.is_closed() || streams.is_retired(),
        }
    }
}

/// State that all requests on an HTTP/2 connection share.
#[derive(Debug)]
pub(super) struct Streams {
    pool: Weak<dyn ConnectionPool>,
    /// The server's limit. It is 1 until the server sends its settings, for which the first request
    /// waits inside h2.
    most: AtomicUsize,
    is_known: Notify,
    in_use: Mutex<InUse>,
    has_answered: AtomicBool,
    is_retired: AtomicBool,
    /// The number of the pool's connections that are not retired.
    open: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct InUse {
    count: usize,
    /// The connection while all streams are in use. Otherwise it is in the pool.
    full: Option<Box<PooledConnection>>,
}

/// A stream in use.
#[derive(Debug)]
pub(super) struct Stream(Arc<Streams>);

impl Streams {
    pub(super) fn of(pool: Weak<dyn ConnectionPool>, open: &Arc<AtomicUsize>) -> Arc<Self> {
        open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            pool,
            most: AtomicUsize::new(1),
            is_known: Notify::new(),
            in_use: Mutex::default(),
            has_answered: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            open: Arc::clone(open),
        })
    }

    pub(super) fn allow(&self, most: usize) {
        // A server may temporarily allow no streams. Then a single request waits inside h2.
        let most = most.max(1);
        let before = self.most.load(Ordering::Relaxed);
        if most == before {
            return;
        }
        self.most.store(most, Ordering::Relaxed);
        self.is_known.notify_one();
        if most > before {
            let full = self.in_use.lock().full.take();
            self.put(full);
        }
    }

    /// Also completes [`known`](Self::known), because a closed connection receives no settings.
    pub(super) fn close(&self) {
        self.retire();
        self.is_known.notify_one();
    }

    pub(super) async fn known(&self) {
        self.is_known.notified().await;
    }

    fn put(&self, kept: Option<Box<PooledConnection>>) {
        if let Some(mut kept) = kept
            && !kept.is_closed()
            && let Some(pool) = self.pool.upgrade()
        {
            kept.used_at = Instant::now();
            pool.put(kept);
        }
    }

    /// Whether the connection has worked before. The server may still close it at any time.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Stops new requests from using the connection. It closes after its last stream.
    pub(super) fn retire(&self) {
        if !self.is_retired.swap(true, Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Starts another stream, if the server allows it.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Stream> {
        let mut in_use = self.in_use.lock();
        if in_use.count >= self.most.load(Ordering::Relaxed) {
            return None;
        }
        in_use.count += 1;
        Some(Stream(Arc::clone(self)))
    }

    /// Returns the connection unless all streams are in use. In that case, the first stream to
    /// finish returns the connection to the pool.
    pub(super) fn park(&self, kept: Box<PooledConnection>) -> Option<Box<PooledConnection>> {
        let mut in_use = self.in_use.lock();
        if in_use.count < self.most.load(Ordering::Relaxed) {
            return Some(kept);
        }
        in_use.full = Some(kept);
        None
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let full = {
            let mut in_use = self.0.in_use.lock();
            in_use.count -= 1;
            in_use.full.take()
        };
        self.0.put(full);
    }
}
