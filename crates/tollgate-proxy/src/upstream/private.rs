//! Idle connections that belong to one client.
//!
//! NTLM and Negotiate authenticate a connection, and the service then assigns all its requests to
//! the same user. So such a connection never returns to the pool's other connections. It serves
//! only the client connection that has authenticated it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connection::PooledConnection;
use crate::head::connection::Connection;

#[derive(Debug, Default)]
pub(super) struct Private {
    kept: Mutex<Kept>,
    /// The number of connections. Nearly all requests only read this.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the client connection's address, which the `Weak` reserves.
    of: HashMap<usize, Box<PooledConnection>>,
    is_swept: bool,
}

impl Private {
    pub(super) fn take(&self, client: &Arc<Connection>) -> Option<Box<PooledConnection>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let connection = kept.of.remove(&address(Arc::as_ptr(client)));
        self.count.store(kept.of.len(), Ordering::Relaxed);
        connection.filter(|connection| !connection.is_closed())
    }

    /// Stores a connection for its client. Returns whether the caller must start to sweep.
    pub(super) fn put(&self, owner: &Weak<Connection>, connection: Box<PooledConnection>) -> bool {
        let mut kept = self.kept.lock();
        kept.of.insert(address(owner.as_ptr()), connection);
        self.count.store(kept.of.len(), Ordering::Relaxed);
        !std::mem::replace(&mut kept.is_swept, true)
    }

    /// Closes the connection that was idle for the longest time.
    pub(super) fn evict(&self) {
        let of = &mut self.kept.lock().of;
        let oldest = of.iter().min_by_key(|(_, connection)| connection.used_at);
        if let Some(oldest) = oldest.map(|(client, _)| *client) {
            of.remove(&oldest);
            self.count.store(of.len(), Ordering::Relaxed);
        }
    }

    /// Closes connections that were idle for this time or have lost their client. Returns whether
    /// none remain.
    pub(super) fn sweep(&self, idle: Duration) -> bool {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        kept.of.retain(|_, connection| {
            let has_client = connection.owner.as_ref().is_some_and(|it| it.strong_count() > 0);
            has_client && connection.used_at + idle > now && !connection.is_closed()
        });
        self.count.store(kept.of.len(), Ordering::Relaxed);
        kept.is_swept = !kept.of.is_empty();
        !kept.is_swept
    }
}

fn address(client: *const Connection) -> usize {
    client.addr()
}
