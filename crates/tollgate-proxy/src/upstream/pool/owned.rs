//! Connections of the pool that clients have authenticated.

use std::sync::{Arc, Weak};

use tokio::time::sleep;

use super::super::connection::PooledConnection;
use super::idle::Pool;
use crate::head::connection::Connection;

impl Pool {
    /// Stores an idle connection for its owner. Closes it if other requests wait for a connection,
    /// because clients could otherwise occupy unused connections.
    pub(super) fn put_private(
        self: &Arc<Self>,
        owner: &Weak<Connection>,
        connection: Box<PooledConnection>,
    ) {
        if owner.strong_count() == 0 || self.has_waiters() {
            return;
        }
        if self.private.put(owner, connection) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Finishes when no connection remains.
async fn sweep(pool: Weak<Pool>) {
    loop {
        let Some(idle) = pool.upgrade().map(|pool| pool.settings.idle) else { return };
        sleep(idle).await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.private.sweep(idle) {
            return;
        }
    }
}
