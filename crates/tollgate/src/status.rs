//! Reports of stores for operators, and gauges that a program refreshes.
//!
//! The gauges for the size of a store and the remainder of a quota do not change by themselves. Call
//! [`refresh`] before each read of the metrics. The admin router calls it.

use std::collections::BTreeMap;

use metrics::{counter, gauge};
use tollgate_core::{Key, Outcome, Policy, Source, Store};

use crate::Limit;
use crate::key::SubjectName;
pub use crate::layer::LayerHandle;
use crate::metrics::name;
#[cfg(feature = "admin")]
pub use crate::observe::Denials;
use crate::store::{BreakerState, Fallback};

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
    /// The state of its breaker, if it has one.
    pub breaker: Option<BreakerState>,
    /// The contents of a store in memory.
    #[cfg(feature = "memory")]
    pub memory: Option<tollgate_memory::MemoryStats>,
    /// The counters of a Redis store.
    #[cfg(feature = "redis")]
    pub redis: Option<tollgate_redis::RedisStats>,
    /// The servers of a Redis store, with their versions and warnings.
    #[cfg(feature = "redis")]
    pub servers: Vec<tollgate_redis::RedisReport>,
    /// The report of the local store that decides during outages.
    pub local: Option<Box<Self>>,
}

impl StoreReport {
    /// Makes the report of a store that can be called, without details.
    pub const fn new(name: &'static str, identity: usize) -> Self {
        Self {
            name,
            identity,
            is_available: true,
            breaker: None,
            #[cfg(feature = "memory")]
            memory: None,
            #[cfg(feature = "redis")]
            redis: None,
            #[cfg(feature = "redis")]
            servers: Vec::new(),
            local: None,
        }
    }
}

#[cfg(feature = "memory")]
impl<C: tollgate_memory::Clock> Inspect for tollgate_memory::MemoryStore<C> {
    fn inspect(&self) -> StoreReport {
        let memory = Some(self.stats());
        StoreReport { memory, ..StoreReport::new(self.name(), self.identity()) }
    }
}

#[cfg(feature = "redis")]
impl Inspect for tollgate_redis::RedisStore {
    fn inspect(&self) -> StoreReport {
        StoreReport {
            is_available: self.is_connected() && !self.breaker().is_open(),
            breaker: Some(self.breaker()),
            redis: Some(self.stats()),
            servers: self.reports(),
            ..StoreReport::new(self.name(), self.identity())
        }
    }
}

impl<S: Inspect, L: Inspect> Inspect for Fallback<S, L> {
    fn inspect(&self) -> StoreReport {
        let local = StoreReport { name: "local", ..self.local().inspect() };
        StoreReport { local: Some(Box::new(local)), ..self.get_ref().inspect() }
    }
}

/// Sets the gauges of stores and of global quotas. It reads each global quota from its store and
/// takes no units.
pub async fn refresh(layers: &[LayerHandle]) {
    let mut reports: BTreeMap<usize, StoreReport> = BTreeMap::new();
    let mut asked: Vec<Policy> = Vec::new();
    for layer in layers {
        let report = layer.store();
        if let Some(local) = &report.local {
            reports.insert(local.identity, StoreReport::clone(local));
        }
        reports.insert(report.identity, report);
        for (index, limit) in layer.limits().into_iter().enumerate() {
            let policy = limit.policy();
            if asked.contains(policy) || !is_global(limit) {
                continue;
            }
            asked.push(policy.clone());
            // Without an answer the gauge stays. Other metrics show the outage.
            if let Ok(verdict) = layer.peek(limit, None, &Key::GLOBAL).await
                && let [decision] = verdict.decisions()
                && decision.outcome != Outcome::Undecided
                && verdict.source() != Source::Local
            {
                layer.observed(index).remains(decision);
            }
        }
    }
    let mut stores: BTreeMap<&'static str, Gauges> = BTreeMap::new();
    for report in reports.values() {
        stores.entry(report.name).or_default().add(report);
    }
    for (store, gauges) in stores {
        gauges.set(store);
    }
}

pub(crate) fn is_global(limit: &Limit) -> bool {
    let subject = limit.key.named(&SubjectName::Global);
    subject.is_some_and(|subject| subject.key == Key::GLOBAL)
}

#[derive(Default)]
struct Gauges {
    away: bool,
    breaker: Option<bool>,
    memory: Option<(usize, usize, u64)>,
    queued: Option<u64>,
}

impl Gauges {
    fn add(&mut self, report: &StoreReport) {
        self.away |= !report.is_available;
        if let Some(state) = report.breaker {
            *self.breaker.get_or_insert_default() |= state.is_open();
        }
        #[cfg(feature = "memory")]
        if let Some(stats) = report.memory {
            let sum = self.memory.get_or_insert_default();
            sum.0 += stats.keys;
            sum.1 += stats.bytes;
            sum.2 += stats.overflowed;
        }
        #[cfg(feature = "redis")]
        if let Some(stats) = report.redis {
            *self.queued.get_or_insert_default() += stats.queued;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "all are below 2^53")]
    fn set(self, store: &'static str) {
        let labels = [("store", store)];
        gauge!(name::AVAILABLE, &labels).set(f64::from(u8::from(!self.away)));
        if let Some(is_open) = self.breaker {
            gauge!(name::BREAKER, &labels).set(f64::from(u8::from(is_open)));
        }
        if let Some((keys, bytes, overflowed)) = self.memory {
            gauge!(name::KEYS, &labels).set(keys as f64);
            gauge!(name::BYTES, &labels).set(bytes as f64);
            counter!(name::OVERFLOWED, &labels).absolute(overflowed);
        }
        if let Some(queued) = self.queued {
            gauge!(name::REDIS_QUEUED, &labels).set(queued as f64);
        }
    }
}
