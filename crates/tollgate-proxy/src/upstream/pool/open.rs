//! Opens a pool's connections.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::settings::Protocol;
use hyper::client::conn::{http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::super::checkout::SendError;
use super::super::connection::{PooledConnection, RequestSender, Streams};
use super::super::connector::{self, Connector};
use super::super::socket::{Begun, Socket};
use super::idle::Pool;

impl Pool {
    /// Opens a connection for all waiting requests. Runs in its own task, because the request
    /// that started it may get another stream first.
    pub(super) fn open_shared(
        self: &Arc<Self>,
        turn: OwnedMutexGuard<()>,
        until: Instant,
        worker: usize,
    ) -> JoinHandle<Result<(), SendError>> {
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let connection = pool.open(until, worker).await?;
            let streams = connection.streams();
            pool.put(connection);
            if let Some(streams) = streams {
                // Only now is it known whether the waiting requests need another connection.
                let _ = timeout_at(until, streams.known()).await;
            }
            drop(turn);
            Ok(())
        })
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        until: Instant,
        worker: usize,
    ) -> Result<Box<PooledConnection>, SendError> {
        let permit = timeout_at(until, Arc::clone(&self.permits).acquire_owned()).await;
        match permit {
            Ok(Ok(permit)) => self.connect(permit, until, worker).await,
            _ => Err(SendError::Full),
        }
    }

    pub(super) const fn no_connection(&self) -> SendError {
        SendError::ConnectTimeout(self.settings.timeout)
    }

    pub(super) async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        until: Instant,
        home: usize,
    ) -> Result<Box<PooledConnection>, SendError> {
        let connecting = async {
            match &self.connector {
                Connector::Tcp(tcp, server, addresses) => {
                    let stream = connector::connect(tcp, server, addresses).await?;
                    self.handshake(stream, permit).await
                }
                #[cfg(test)]
                Connector::Test(dial) => self.handshake(TokioIo::new(dial().await?), permit).await,
                Connector::Unix(socket) => {
                    self.handshake(TokioIo::new(UnixStream::connect(socket).await?), permit).await
                }
            }
        };
        let connected = timeout_at(until, connecting).await.map_err(|_| self.no_connection())?;
        let (sender, begun) = connected.map_err(|error| {
            if timed_out(&*error) { self.no_connection() } else { SendError::Connect(error) }
        })?;
        Ok(self.pooled(sender, begun, home))
    }

    pub(super) fn pooled(
        &self,
        sender: RequestSender,
        begun: Begun,
        home: usize,
    ) -> Box<PooledConnection> {
        let used_at = Instant::now();
        let max_age = self.settings.max_age;
        let expires_at = used_at + max_age - max_age.mul_f64(fastrand::f64() / 5.0);
        let (timer, owner, _stream) = (None, None, None);
        Box::new(PooledConnection {
            sender,
            begun,
            timer,
            home,
            used_at,
            expires_at,
            owner,
            _stream,
        })
    }

    pub(super) async fn handshake<S: Read + Write + Unpin + Send + 'static>(
        self: &Arc<Self>,
        stream: S,
        permit: OwnedSemaphorePermit,
    ) -> Result<(RequestSender, Begun), Box<dyn Error + Send + Sync>> {
        let (io, begun) = Socket::new(stream, self.protocol, permit);
        let sender = match self.protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                let handshake = builder.max_buf_size(HEAD_BYTES).handshake(io);
                let (sender, connection) = handshake.await?;
                tokio::spawn(connection.with_upgrades());
                RequestSender::Http1(sender)
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .keep_alive_interval(PING)
                    .keep_alive_timeout(PONG)
                    // The server may refuse streams over its limit, so wait for its settings.
                    .initial_max_send_streams(0)
                    .initial_stream_window_size(STREAM_BYTES)
                    .initial_connection_window_size(CONNECTION_BYTES);
                let (sender, mut connection) = builder.handshake(io).await?;
                let streams = Streams::of(self.downgraded(), &self.open);
                let known = Arc::clone(&streams);
                tokio::spawn(async move {
                    // The server may change this limit at any time.
                    let _ = poll_fn(|cx| {
                        let polled = Pin::new(&mut connection).poll(cx);
                        known.allow(connection.current_max_send_streams());
                        polled
                    })
                    .await;
                    known.close();
                });
                RequestSender::Http2(sender, streams)
            }
        };
        Ok((sender, begun))
    }
}

/// Whether the last address of a name did not answer within its share of the time.
fn timed_out(error: &(dyn Error + 'static)) -> bool {
    let mut errors = std::iter::successors(Some(error), |&error| error.source());
    errors.any(|error| {
        let io = error.downcast_ref::<io::Error>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    })
}

const HEAD_BYTES: usize = 64 << 10;

/// How many bytes of each HTTP/2 response are buffered for a slow client.
const STREAM_BYTES: u32 = 256 << 10;

/// The largest possible window, so only a stream's own window is ever exhausted. All requests share
/// the connection: if its window could fill up, one client that does not read would delay
/// everyone's responses.
const CONNECTION_BYTES: u32 = (1 << 31) - 1;

/// The gateway sends a PING if requests wait and the server has sent no response for this time. By
/// default, gRPC servers close connections with more frequent PINGs.
const PING: Duration = Duration::from_secs(5 * 60);

/// The time limit for the answer to a PING.
const PONG: Duration = Duration::from_secs(20);
