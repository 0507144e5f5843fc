//! A connection to a server, which sends commands and receives answers. Only `fred.rs` knows the
//! client library, so tests can use a simulated network instead.

pub(crate) mod command;
mod fred;

use std::time::Duration;

use ::fred::types::config::{Server, TlsConfig};
use smallvec::SmallVec;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use self::command::{Answers, Command};
use self::fred::FredConnection;
use crate::client::address::Address;
use crate::client::host_port::HostPort;
#[cfg(feature = "test-util")]
use crate::simulation;

/// A connection to a server, which reconnects when it breaks.
#[derive(Debug)]
pub(crate) enum Connection {
    Fred(FredConnection),
    #[cfg(feature = "test-util")]
    Simulated(Box<dyn simulation::Connection>),
}

/// How to connect to servers.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    Fred {
        address: Address,
        tls: Option<TlsConfig>,
    },
    #[cfg(feature = "test-util")]
    Simulated(std::sync::Arc<dyn simulation::Network>),
}

/// Notifies on each new connection.
#[derive(Debug)]
pub(crate) enum Reconnects {
    Fred(broadcast::Receiver<Server>),
    #[cfg(feature = "test-util")]
    Simulated(broadcast::Receiver<()>),
}

/// Evaluates an expression for either kind of connection.
macro_rules! with_either {
    ($any:expr, $it:ident => $body:expr) => {
        match $any {
            Self::Fred($it) => $body,
            #[cfg(feature = "test-util")]
            Self::Simulated($it) => $body,
        }
    };
}

impl Network {
    /// Starts to connect to a Cluster node, or to the URL's server, and retries forever. Must be
    /// called in a tokio runtime.
    pub(crate) fn connect(
        &self,
        node: Option<&HostPort>,
        timeout: Duration,
    ) -> Result<Connection, String> {
        match self {
            Self::Fred { address, tls } => {
                let connection = FredConnection::new(address.config(node, tls.clone()), timeout);
                connection.map(Connection::Fred).map_err(|error| error.to_string())
            }
            #[cfg(feature = "test-util")]
            Self::Simulated(network) => {
                let node = node.map(|node| (&*node.host, node.port));
                Ok(Connection::Simulated(network.connect(node)))
            }
        }
    }
}

impl Connection {
    /// Sends commands with no other commands between them. Gives up after `timeout`; a command that
    /// was not written by then is never sent.
    pub(crate) async fn send(
        &self,
        commands: SmallVec<[Command; 1]>,
        timeout: Duration,
    ) -> Answers {
        with_either!(self, it => it.send(commands, timeout).await)
    }

    /// Waits until there is a connection.
    pub(crate) async fn connected(&self) {
        with_either!(self, it => it.connected().await);
    }

    pub(crate) fn is_connected(&self) -> bool {
        with_either!(self, it => it.is_connected())
    }

    /// Replaces the connection. Does nothing while the client is connecting.
    pub(crate) fn reconnect(&self) {
        with_either!(self, it => it.reconnect());
    }

    pub(crate) fn reconnects(&self) -> Reconnects {
        match self {
            Self::Fred(it) => Reconnects::Fred(it.reconnects()),
            #[cfg(feature = "test-util")]
            Self::Simulated(it) => Reconnects::Simulated(it.reconnects()),
        }
    }
}

impl Reconnects {
    /// Waits for the next connection. Returns `false` if there will not be another.
    pub(crate) async fn next(&mut self) -> bool {
        // If some notifications were missed, the last one counts.
        with_either!(self, it => !matches!(it.recv().await, Err(RecvError::Closed)))
    }

    /// Returns the number of connections so far, if no notification is ever received.
    pub(crate) fn count(&self) -> usize {
        with_either!(self, it => it.len())
    }

    /// Discards pending notifications.
    pub(crate) fn skip(&mut self) {
        while with_either!(self, it => it.try_recv().is_ok()) {}
    }
}
