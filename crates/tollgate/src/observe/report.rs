use std::collections::BTreeMap;

use tollgate_core::Store;

use crate::store::Fallback;

/// A store that can report its state.
pub trait Inspect: Store {
    /// Returns the store's report.
    fn inspect(&self) -> StoreReport;
}

/// A store's state, for operators.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreReport {
    /// The store's name in metrics.
    pub name: &'static str,
    /// Identifies the store: all handles to the same store have the same number, so sums can count
    /// it only once.
    pub identity: usize,
    /// Whether the store can be called: it is connected, and no breaker is open.
    pub is_available: bool,
    /// The breaker's state, if the store has a breaker: `closed` while calls reach the server.
    pub breaker: Option<&'static str>,
    /// An in-memory store's counters, by name: `keys`, `bytes`, `overflowed`.
    pub memory: Option<Counters>,
    /// A Redis store's counters, by their names in `RedisStats`.
    pub redis: Option<Counters>,
    /// A Redis store's servers.
    pub servers: Vec<ServerReport>,
    /// The report of the local store that decides during outages.
    pub local: Option<Box<Self>>,
}

/// A store's counters, by name.
pub type Counters = BTreeMap<&'static str, u64>;

/// A store's server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The name of the server software. Unknown before the first connection.
    pub name: Option<&'static str>,
    /// The software's version.
    pub version: Option<String>,
    /// Server properties that will cause errors.
    pub warnings: Vec<String>,
}

impl StoreReport {
    /// Makes a report without details for a store that can be called.
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

#[cfg(feature = "memory")]
impl<C: tollgate_memory::Clock> Inspect for tollgate_memory::ThreadLeases<C> {
    fn inspect(&self) -> StoreReport {
        self.store().inspect()
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
            ("replicas", stats.replicas),
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
