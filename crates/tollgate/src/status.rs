//! How a store is, and gauges that have to be looked at to be true.
//!
//! Counters move by themselves; how full a store is and what remains of a quota that nobody
//! uses at the moment do not. [`refresh`] looks, once before each time that metrics are read.
//! The admin router does it for those who mount it.

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

/// A store that tells how it is.
pub trait Inspect: Store {
    /// How it is now.
    fn inspect(&self) -> StoreReport;
}

/// How a store is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreReport {
    /// What it is called in metrics.
    pub name: &'static str,
    /// The same for all handles of one store, so that sums count it once.
    pub identity: usize,
    /// Whether it can be asked: it is connected, and no breaker is open.
    pub is_available: bool,
    /// Whether its breaker lets requests through, if it has one.
    pub breaker: Option<BreakerState>,
    /// What it holds, if it is in memory.
    #[cfg(feature = "memory")]
    pub memory: Option<tollgate_memory::MemoryStats>,
    /// What it has done, if it is Redis.
    #[cfg(feature = "redis")]
    pub redis: Option<tollgate_redis::RedisStats>,
    /// The servers of a Redis store: their names, their versions and what is wrong with them.
    #[cfg(feature = "redis")]
    pub servers: Vec<tollgate_redis::RedisReport>,
    /// The store in this process that decides when it cannot.
    pub local: Option<Box<Self>>,
}

impl StoreReport {
    /// Of a store that can be asked and says no more.
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

/// Sets the gauges of stores, and of what remains of quotas that all share. It asks the
/// store about each of those, and uses nothing of them.
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
            // What cannot be told stays as it was; that the store is away is told elsewhere.
            if let Ok(verdict) = layer.peek(limit, &Key::GLOBAL).await
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

/// Whether all share one quota of the limit.
pub(crate) fn is_global(limit: &Limit) -> bool {
    let subject = limit.key.named(&SubjectName::Global);
    subject.is_some_and(|subject| subject.key == Key::GLOBAL)
}

/// The sums over all stores of one name.
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

    #[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 of them")]
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
