//! Scripts with a single key, which are called beside the requests' calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::client::connection::command::{Answer, CommandError};
use crate::client::topology::Topology;
use crate::script::Script;
use crate::script::names::Name;

/// A script and its key.
pub(crate) struct KeyedScript {
    topology: Arc<Topology>,
    script: Script,
    name: Name,
    slot: u16,
}

/// How long a call waits for the server and a connection. Another server may become the leader
/// meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl KeyedScript {
    pub(crate) fn new(topology: &Arc<Topology>, script: Script, name: Name) -> Self {
        Self { slot: topology.slot(&name), topology: Arc::clone(topology), script, name }
    }

    /// Waits until the key's server is known.
    pub(crate) async fn discovered(&self) {
        self.topology.leader(self.slot).await;
    }

    /// Calls the script. The command uses the connection of the calls, and no request waits for it.
    pub(crate) async fn call(&self, arguments: &[Bytes]) -> Answer {
        let unsent = |text: &str| CommandError::Unsent(text.to_owned());
        let connected = async {
            let leader = self.topology.leader(self.slot).await;
            leader.connection.connected().await;
            leader
        };
        let leader = timeout(LONGEST_WAIT, connected).await;
        let leader = leader.map_err(|_| unsent("there is no connection"))?;
        if leader.breaker.is_open() {
            return Err(unsent("Redis does not answer"));
        }
        let send = |name, script: &'static str| {
            let mut all = vec![Bytes::from_static(script.as_bytes()), Bytes::from_static(b"1")];
            all.push(Bytes::copy_from_slice(&self.name));
            all.extend_from_slice(arguments);
            leader.command(name, all)
        };
        let mut answer = send("EVALSHA", self.script.sha1).await;
        if answer.as_ref().is_err_and(CommandError::is_no_script) {
            answer = send("EVAL", self.script.text).await;
        }
        answer.inspect_err(|_| self.topology.suspect())
    }
}
