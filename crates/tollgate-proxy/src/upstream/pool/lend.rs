//! Gives a pool's connections to requests, and takes them back.

use std::sync::{Arc, Weak};

use super::super::checkout::Checkout;
use super::super::connection::{ConnectionPool, PooledConnection, RequestSender};
use super::idle::Pool;
use crate::head::connection::Connection;

impl Pool {
    /// The idle connection that this client has authenticated, if any.
    pub(in super::super) fn checkout_private(
        self: &Arc<Self>,
        client: &Arc<Connection>,
    ) -> Option<Checkout> {
        self.private.take(client).map(|connection| self.reused(connection))
    }

    pub(super) fn fresh(self: &Arc<Self>, connection: Box<PooledConnection>) -> Checkout {
        self.checked_out(connection, false)
    }

    pub(super) fn reused(self: &Arc<Self>, connection: Box<PooledConnection>) -> Checkout {
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

    pub(super) fn downgraded(self: &Arc<Self>) -> Weak<dyn ConnectionPool> {
        let pool: Weak<Self> = Arc::downgrade(self);
        pool
    }

    pub(super) fn put(self: &Arc<Self>, connection: Box<PooledConnection>) {
        match connection.owner.clone() {
            Some(owner) => self.put_private(&owner, connection),
            None => self.put_idle(connection),
        }
    }
}

impl ConnectionPool for Pool {
    fn put(self: Arc<Self>, connection: Box<PooledConnection>) {
        Self::put(&self, connection);
    }
}
