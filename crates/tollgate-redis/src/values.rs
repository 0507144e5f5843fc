//! Values that other programs store in Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::RedisStoreBuilder;
use crate::builder::{self, ConnectError};
use crate::calls::failure::Failure;
use crate::client::address::Servers;
use crate::client::connection::command::{Command, Value};
use crate::client::connection::{Connection, Network};
use crate::client::host_port::HostPort;

/// Reads values that other programs store in Redis, for example the quotas of tenants. It has its own
/// connections, so slow reads delay no decision of a store. Created by
/// [`RedisStoreBuilder::values`].
///
/// In a Cluster it follows redirections. While a node does not answer, reads fail after the builder's
/// [timeout](RedisStoreBuilder::timeout).
#[derive(Debug)]
pub struct RedisValues {
    network: Network,
    timeout: Duration,
    /// The nodes of a Cluster that the URL names; otherwise empty.
    named: Vec<HostPort>,
    /// The number of the named node that is asked first.
    first: AtomicUsize,
    /// `None` is the server in the URL.
    connections: Mutex<HashMap<Option<HostPort>, Arc<Connection>>>,
}

/// Why a value could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("redis: {0}")]
pub struct ReadError(String);

impl RedisStoreBuilder {
    /// Creates a reader of values that other programs store. It uses only this builder's address, time
    /// limit and certificate authorities, and starts to connect.
    ///
    /// # Errors
    /// The certificates are not valid, or there is no tokio runtime.
    pub fn values(self) -> Result<RedisValues, ConnectError> {
        builder::runtime()?;
        let (network, timeout) = (self.network()?, self.bounds.timeout);
        let named = match self.address.servers {
            Servers::Cluster(nodes) => nodes,
            _ => Vec::new(),
        };
        let (first, connections) = Default::default();
        let values = RedisValues { network, timeout, named, first, connections };
        values.connection(values.named.first()).map_err(|error| ConnectError::Client(error.0))?;
        Ok(values)
    }
}

impl RedisValues {
    /// Returns the string with this key, if it exists.
    ///
    /// # Errors
    /// Redis did not answer, or the key has another type.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, ReadError> {
        self.read("GET", [key.to_owned().into()].into()).await
    }

    /// Returns a field of the hash with this key, if it exists.
    ///
    /// # Errors
    /// Redis did not answer, or the key has another type.
    pub async fn field(&self, key: &str, field: &str) -> Result<Option<Bytes>, ReadError> {
        self.read("HGET", [key.to_owned().into(), field.to_owned().into()].into()).await
    }

    async fn read(
        &self,
        name: &'static str,
        arguments: Vec<Bytes>,
    ) -> Result<Option<Bytes>, ReadError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut node = self.named.get(first % self.named.len().max(1)).cloned();
        let mut is_asking = false;
        for _ in 0..=MOST_REDIRECTIONS {
            let connection = self.connection(node.as_ref())?;
            let mut commands: SmallVec<[Command; 1]> = SmallVec::new();
            if is_asking {
                commands.push(Command { name: "ASKING", arguments: Vec::new() });
            }
            commands.push(Command { name, arguments: arguments.clone() });
            let answer = connection.send(commands, self.timeout).await.pop();
            let error = match answer {
                Some(Ok(Value::Null)) => return Ok(None),
                Some(Ok(Value::Bytes(bytes))) => return Ok(Some(bytes)),
                Some(Ok(_)) | None => return Err(ReadError("unexpected answer".to_owned())),
                Some(Err(error)) => error,
            };
            if error.is_silence() {
                // Another node may know who has the key.
                self.first.store(first.wrapping_add(1), Ordering::Relaxed);
            }
            let (text, asked) = (error.to_string(), node.as_ref().map_or("", |node| &node.host));
            let redirection = match Failure::from(error) {
                Failure::Refused(refusal) => refusal.redirection(asked),
                Failure::Lost(_) => None,
            };
            let (to, asks) = redirection.ok_or(ReadError(text))?;
            (is_asking, node) = (asks, Some(to));
        }
        Err(ReadError("too many redirections".to_owned()))
    }

    fn connection(&self, node: Option<&HostPort>) -> Result<Arc<Connection>, ReadError> {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(&node.cloned()) {
            return Ok(Arc::clone(connection));
        }
        let connection = self.network.connect(node, self.timeout).map_err(ReadError)?;
        let connection = Arc::new(connection);
        if connections.len() == MOST_NODES {
            // Nodes that left the Cluster.
            connections.clear();
        }
        connections.insert(node.cloned(), Arc::clone(&connection));
        Ok(connection)
    }
}

const MOST_REDIRECTIONS: usize = 4;

/// More than a Cluster has masters.
const MOST_NODES: usize = 1_024;
