//! The interface of a simulated network, under a store that is otherwise real.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::broadcast;

pub use crate::connection::{Answer, Answers, Command, CommandError, Value};

/// A network with servers.
pub trait Network: fmt::Debug + Send + Sync {
    /// Starts to connect to a node of a Cluster, by its host and port, or to the only server.
    fn connect(&self, node: Option<(&str, u16)>) -> Box<dyn Connection>;
}

/// A connection to a server, which reconnects whenever it breaks. Dropping it closes it.
pub trait Connection: fmt::Debug + Send + Sync {
    /// Sends commands without any other command between them, and returns their answers. After
    /// `timeout` it gives up, and commands that wait for a connection are never sent.
    fn send(&self, commands: SmallVec<[Command; 1]>, timeout: Duration) -> Pending<Answers>;

    /// Waits until there is a connection.
    fn connected(&self) -> Pending<()>;

    /// Returns whether there is a connection, as far as this side knows.
    fn is_connected(&self) -> bool;

    /// Replaces the connection. Does nothing while it is connecting.
    fn reconnect(&self);

    /// Returns the moments at which a connection is made.
    fn reconnects(&self) -> broadcast::Receiver<()>;
}

/// A result that takes time.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
