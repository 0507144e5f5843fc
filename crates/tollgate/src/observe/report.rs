use std::collections::BTreeMap;

use tollgate_core::Store;

use crate::store::Fallback;

/// A store that returns a report of its state.
pub trait Inspect: Store {
    /// Returns the report of the store.
    fn inspect(&self) -> StoreReport;
}

/// The state of a store, for operators.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreReport {
    /// The name of the store in metrics.
    pub name: &'static str,
    /// A number that is equal for all handles of one store, so that sums count the store once.
    pub identity: usize,
    /// Whether the store can be called: it is connected, and no breaker is open.
    pub is_available: bool,
    /// The state of its breaker, if it has one: `closed` while calls go to the server.
    pub breaker: Option<&'static str>,
    /// The counters of a store in memory, by name: `keys`, `bytes`, `overflowed`.
    pub memory: Option<Counters>,
    /// The counters of a Redis store, by the names of `RedisStats`.
    pub redis: Option<Counters>,
    /// The servers of a Redis store.
    pub servers: Vec<ServerReport>,
    /// The report of the local store that decides during outages.
    pub local: Option<Box<Self>>,
}

/// Counters of a store, by name.
pub type Counters = BTreeMap<&'static str, u64>;

/// A server of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The name of the server's software. Unknown before the first connection.
    pub name: Option<&'static str>,
    /// The version of that software.
    pub version: Option<String>,
    /// Properties of the server that will cause errors.
    pub warnings: Vec<String>,
}

impl StoreReport {
    /// Makes the report of a store that can be called, without details.
    pub const fn new(name: &'static str, identity: usize) -> Self {
        Self {
            name,
            identity,
            is_available: true,
            breaker: None,
            memory: None,
            redis: None,
            servers: Vec::new(),
            local: None,
        }
    }
}

#[cfg(feature = "memory")]
impl<C: tollgate_memory::Clock> Inspect for tollgate_memory::MemoryStore<C> {
    fn inspect(&self) -> StoreReport {
        let stats = self.stats();
        let counters = [
            ("keys", stats.keys as u64),
            ("bytes", stats.bytes as u64),
            ("overflowed", stats.overflowed),
        ];
        StoreReport {
            memory: Some(counters.into()),
            ..StoreReport::new(self.name(), self.identity())
        }
    }
}

#[cfg(feature = "redis")]
impl Inspect for tollgate_redis::RedisStore {
    fn inspect(&self) -> StoreReport {
        let stats = self.stats();
        let counters = [
            ("calls", stats.calls),
            ("requests", stats.requests),
            ("refused", stats.refused),
            ("lost", stats.lost),
            ("late", stats.late),
            ("shed", stats.shed),
            ("deny_cache_hits", stats.deny_cache_hits),
            ("leased", stats.leased),
            ("queued", stats.queued),
            ("connections", stats.connections),
        ];
        StoreReport {
            is_available: self.is_connected() && !self.breaker().is_open(),
            breaker: Some(self.breaker().as_str()),
            redis: Some(counters.into()),
            servers: self.reports().into_iter().map(ServerReport::from).collect(),
            ..StoreReport::new(self.name(), self.identity())
        }
    }
}

#[cfg(feature = "redis")]
impl From<tollgate_redis::RedisReport> for ServerReport {
    fn from(report: tollgate_redis::RedisReport) -> Self {
        let tollgate_redis::RedisReport { name, version, warnings, .. } = report;
        Self { name, version, warnings: warnings.iter().map(ToString::to_string).collect() }
    }
}

impl<S: Inspect, L: Inspect> Inspect for Fallback<S, L> {
    fn inspect(&self) -> StoreReport {
        let local = StoreReport { name: "local", ..self.local().inspect() };
        StoreReport { local: Some(Box::new(local)), ..self.get_ref().inspect() }
    }
}
