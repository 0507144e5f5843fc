//! Connections to one upstream. Idle connections are reused.
//!
//! Each worker has its own connections, because a connection is cheapest on the thread that serves
//! it. The number of connections is limited over all workers.
//!
//! | file | content |
//! |---|---|
//! | `idle.rs` | the pool, its idle connections and its queue |
//! | `owned.rs` | connections that a client has authenticated |
//! | `lend.rs` | connections for requests, and their return |
//! | `open.rs` | new connections |

mod idle;
mod lend;
mod open;
mod owned;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::settings::Protocol;
use tokio::time::{Instant, timeout_at};

pub(super) use self::idle::Pool;
pub use self::idle::become_worker;
use super::checkout::{Checkout, SendError};

impl Pool {
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
}

#[cfg(test)]
mod tests;
