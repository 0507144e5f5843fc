//! Which server has which slots, and slots that move.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tollgate_redis::simulation::{Value, slot};

/// The slots' masters. Each server has its own view, which can be old.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) epoch: u64,
    /// The server that leads each shard.
    pub(crate) masters: Vec<usize>,
    /// The shards of slots that have moved.
    pub(crate) moved: BTreeMap<u16, usize>,
}

/// A server's part in a Cluster.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) view: View,
    /// The slots that are moving away, and the slots that are moving here.
    pub(crate) migrating: BTreeMap<u16, usize>,
    pub(crate) importing: BTreeSet<u16>,
}

const SLOTS: usize = 16_384;
const PORT: u16 = 7_000;

impl View {
    pub(crate) fn new(shards: usize) -> Self {
        // Each shard has two servers, and the first one starts as its master.
        let masters = (0..shards).map(|shard| 2 * shard).collect();
        Self { epoch: 1, masters, moved: BTreeMap::new() }
    }

    pub(crate) fn shard(&self, slot: u16) -> usize {
        let home = usize::from(slot) * self.masters.len() / SLOTS;
        self.moved.get(&slot).copied().unwrap_or(home)
    }

    pub(crate) fn owner(&self, slot: u16) -> usize {
        self.masters[self.shard(slot)]
    }

    /// The answer to `CLUSTER SLOTS`.
    fn slots(&self) -> Value {
        let homes = (0..self.masters.len()).map(|shard| {
            u16::try_from((shard * SLOTS).div_ceil(self.masters.len())).expect("a slot")
        });
        let around = self.moved.keys().flat_map(|slot| [*slot, slot + 1]);
        let starts: BTreeSet<u16> = homes.chain(around).collect();
        let ends = starts.iter().skip(1).copied().chain([SLOTS as u16]);
        let number = |number: u16| Value::Number(number.into());
        let parts = starts.iter().zip(ends).map(|(start, end)| {
            let owner = Value::Bytes(Bytes::from(host(self.owner(*start))));
            let node = Value::List(vec![owner, number(PORT), Value::Null]);
            Value::List(vec![number(*start), number(end - 1), node])
        });
        Value::List(parts.collect())
    }
}

impl Member {
    pub(super) fn new(view: View) -> Self {
        Self { view, migrating: BTreeMap::new(), importing: BTreeSet::new() }
    }

    /// Returns why server `number` does not execute a call with these keys. `exists` tells which
    /// keys it has.
    pub(super) fn refusal(
        &self,
        number: usize,
        keys: &[Bytes],
        is_asking: bool,
        exists: impl Fn(&[u8]) -> bool,
    ) -> Option<String> {
        let slot = slot(keys.first()?);
        if keys.iter().any(|key| self::slot(key) != slot) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let missing = keys.iter().filter(|key| !exists(key)).count();
        let try_again = || "TRYAGAIN Multiple keys request during rehashing of slot".to_owned();
        let owner = self.view.owner(slot);
        if owner == number {
            return match self.migrating.get(&slot) {
                Some(to) if missing == keys.len() => {
                    Some(format!("ASK {slot} {}:{PORT}", host(*to)))
                }
                Some(_) if missing > 0 => Some(try_again()),
                _ => None,
            };
        }
        if is_asking && self.importing.contains(&slot) {
            return (keys.len() > 1 && missing > 0).then(try_again);
        }
        Some(format!("MOVED {slot} {}:{PORT}", host(owner)))
    }

    /// The answer to `CLUSTER`.
    pub(super) fn answer(&self, command: &[u8]) -> Value {
        match command {
            b"SLOTS" => self.view.slots(),
            _ => Value::Bytes(format!("cluster_current_epoch:{}\r\n", self.view.epoch).into()),
        }
    }
}

/// A server's host name.
fn host(server: usize) -> String {
    format!("node-{server}")
}

/// Returns the server with this host name.
pub(crate) fn server_of(host: &str) -> usize {
    host.strip_prefix("node-").and_then(|number| number.parse().ok()).expect("a server's host")
}

/// The URL of a Cluster.
pub(crate) fn url(shards: usize) -> String {
    let nodes = (1..shards).map(|shard| format!("node={}:{PORT}", host(2 * shard)));
    format!("redis-cluster://{}:{PORT}?{}", host(0), nodes.collect::<Vec<_>>().join("&"))
}
