use std::collections::BTreeMap;

use metrics::{counter, gauge};
use tollgate_core::{Key, Outcome, Policy, Source};

use super::metric::name;
use super::report::StoreReport;
use crate::layer::LayerHandle;

/// Sets the gauges for stores and global quotas. It reads each global quota from its store without
/// charging units.
pub async fn refresh(layers: &[LayerHandle]) {
    let mut reports: BTreeMap<usize, StoreReport> = BTreeMap::new();
    let mut peeked: Vec<Policy> = Vec::new();
    for layer in layers {
        let report = layer.store();
        if let Some(local) = &report.local {
            reports.insert(local.identity, StoreReport::clone(local));
        }
        reports.insert(report.identity, report);
        for (limit, observed) in layer.limits().into_iter().zip(layer.counts()) {
            let policy = limit.policy();
            if peeked.contains(policy) || !limit.is_global() {
                continue;
            }
            peeked.push(policy.clone());
            // If the store does not reply, the gauge is unchanged. Other metrics show the outage.
            if let Ok(verdict) = layer.peek(limit, None, &Key::GLOBAL).await
                && let [decision] = verdict.decisions()
                && decision.outcome != Outcome::Undecided
                && verdict.source() != Source::Local
            {
                observed.set_quota_gauges(decision);
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

/// The sums over all stores with the same name.
#[derive(Default)]
struct Gauges {
    is_unavailable: bool,
    breaker: Option<bool>,
    counters: BTreeMap<&'static str, u64>,
}

impl Gauges {
    fn add(&mut self, report: &StoreReport) {
        self.is_unavailable |= !report.is_available;
        if let Some(state) = report.breaker {
            *self.breaker.get_or_insert_default() |= state != "closed";
        }
        for (counter, count) in report.memory.iter().chain(&report.redis).flatten() {
            *self.counters.entry(counter).or_default() += count;
        }
    }

    fn set(self, store: &'static str) {
        let labels = [("store", store)];
        gauge!(name::AVAILABLE, &labels).set(f64::from(u8::from(!self.is_unavailable)));
        if let Some(is_open) = self.breaker {
            gauge!(name::BREAKER, &labels).set(f64::from(u8::from(is_open)));
        }
        for (counter, gauge) in [
            ("keys", name::KEYS),
            ("bytes", name::BYTES),
            ("queued", name::REDIS_QUEUED),
            ("replicas", name::REDIS_REPLICAS),
        ] {
            #[expect(clippy::cast_precision_loss, reason = "all are below 2^53")]
            if let Some(count) = self.counters.get(counter) {
                gauge!(gauge, &labels).set(*count as f64);
            }
        }
        if let Some(count) = self.counters.get("overflowed") {
            counter!(name::OVERFLOWED, &labels).absolute(*count);
        }
    }
}
