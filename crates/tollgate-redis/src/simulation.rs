//! The interface of a simulated network under an otherwise real store.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::broadcast;

pub use fred::util::redis_keyslot as slot;

pub use crate::client::connection::command::{Answer, Answers, Command, CommandError, Value};

/// A network with servers.
pub trait Network: fmt::Debug + Send + Sync {
    /// Starts to connect to a Cluster node, by its host and port, or to the only server.
    fn connect(&self, node: Option<(&str, u16)>) -> Box<dyn Connection>;
}

/// A connection to a server, which reconnects when it breaks. Dropping it closes it.
pub trait Connection: fmt::Debug + Send + Sync {
    /// Sends commands with no other commands between them, and returns their answers. After
    /// `timeout` it gives up, and commands that wait for a connection are never sent.
    fn send(&self, commands: SmallVec<[Command; 1]>, timeout: Duration) -> Pending<Answers>;

    /// Waits until there is a connection.
    fn connected(&self) -> Pending<()>;

    /// Returns whether there is a connection, as far as this side knows.
    fn is_connected(&self) -> bool;

    /// Replaces the connection. Does nothing while it is connecting.
    fn reconnect(&self);

    /// Notifies on each new connection.
    fn reconnects(&self) -> broadcast::Receiver<()>;
}

/// A boxed future.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
