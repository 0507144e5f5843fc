//! A type-erased layer or limiter, for the admin router and metrics.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{
    AnyStore, BoxFuture, Charge, Cost, Key, Micros, Override, OverrideChange, Overrides, Policy,
    Receipt, Reply, Settlement, Store, Verdict,
};

use super::service::{RateLimit, RateLimitLayer};
use super::state::Http;
use crate::Limit;
use crate::drive::{Driver, Telemetry};
use crate::key::SubjectName;
use crate::observe::{Inspect, ObservedPolicy, StoreReport};
use crate::tier::Tier;

/// A type-erased [`RateLimitLayer`](super::RateLimitLayer) or [`Limiter`](crate::Limiter), for admin
/// tools. Clones are handles to the same layer.
#[derive(Clone)]
pub struct LayerHandle(Arc<dyn AnyLayer>);

impl<St: Inspect, M> RateLimitLayer<St, M> {
    /// Returns a handle to this layer.
    pub fn handle(&self) -> LayerHandle {
        LayerHandle::new(Arc::clone(&self.state))
    }
}

impl<S, St: Inspect, M> RateLimit<S, St, M> {
    /// Returns a handle to the layer around this service.
    pub fn handle(&self) -> LayerHandle {
        LayerHandle::new(Arc::clone(&self.state))
    }
}

impl LayerHandle {
    pub(crate) fn new<St: Inspect, X: Limited>(driver: Arc<Driver<St, X>>) -> Self {
        Self(driver)
    }

    /// Returns the layer's limits, in the order in which they were added.
    pub fn limits(&self) -> Vec<&Limit> {
        self.0.limited().limits()
    }

    /// Returns the report from the layer's store.
    pub fn store(&self) -> StoreReport {
        self.0.inspect()
    }

    /// Returns the counts for the limits' policies, in the order of the limits.
    pub fn counts(&self) -> impl Iterator<Item = &ObservedPolicy> {
        self.0.telemetry().policies()
    }

    /// Returns the decision for `key` under a limit, without charging it. All tiers share the same
    /// state, but the remaining units depend on the tier's quota, on the key's own quota if it was
    /// looked up recently, or on its override.
    pub fn peek(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> Reply<BoxFuture<Verdict>> {
        self.0.store().decide(&[Charge::new(&self.policy_of(limit, tier, key), key, Cost::ZERO)])
    }

    /// Returns the policy that applies to `key` now: its override, its own quota if it was looked up
    /// recently, or the tier's policy.
    pub fn policy_of(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> Policy {
        let quota = match self.override_of(limit, key) {
            Some(it) if it.change != OverrideChange::Block => it.change.policy(limit.policy()).ok(),
            _ => None,
        };
        quota.unwrap_or_else(|| limit.policy_of(tier, key))
    }

    /// Returns for how long an operator still blocks `key` under a limit.
    pub fn blocked_for(&self, limit: &Limit, key: &Key) -> Option<Micros> {
        let is_block =
            self.override_of(limit, key).is_some_and(|it| it.change == OverrideChange::Block);
        if is_block { self.overridden_for(limit, key) } else { None }
    }

    /// Returns for how long an operator still blocks `key`, or gives it another quota.
    pub fn overridden_for(&self, limit: &Limit, key: &Key) -> Option<Micros> {
        let found = self.override_of(limit, key)?;
        Some(found.until.since(self.overrides()?.now()))
    }

    /// Returns whether a limit does not apply to `key` now: it has no override, and is unlimited by
    /// its quota, if that was looked up recently, or by its tier.
    pub fn is_unlimited(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> bool {
        limit.is_unlimited(tier, key) && self.override_of(limit, key).is_none()
    }

    /// The override that has an effect on `key`.
    fn override_of(&self, limit: &Limit, key: &Key) -> Option<Override> {
        let overrides = self.overrides().filter(Overrides::is_any)?;
        let found = overrides.find(limit.policy().name(), key)?;
        let has_effect = found.change != OverrideChange::Block || limit.is_enforced();
        (has_effect && found.change.policy(limit.policy()).is_ok()).then_some(found)
    }

    /// Returns the overrides of the layer's store, if the store has them.
    pub fn overrides(&self) -> Option<Overrides> {
        self.0.store().overrides()
    }

    /// Returns a subject's tier, if the tier source can find it without a request.
    pub fn tier_of(&self, name: &SubjectName) -> Option<Tier> {
        self.0.limited().tier_of(name)
    }

    /// Resets the used units of `key` under a limit.
    pub fn reset(&self, limit: &Limit, key: &Key) -> Reply<BoxFuture<()>> {
        self.0.store().reset(limit.policy(), key)
    }

    /// Corrects a charge. See [`Store::settle`](crate::Store::settle).
    pub fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.0.store().settle(receipt, actual)
    }
}

trait AnyLayer: Send + Sync {
    fn limited(&self) -> &dyn Limited;
    fn telemetry(&self) -> &Telemetry;
    fn store(&self) -> AnyStore;
    fn inspect(&self) -> StoreReport;
}

/// The data for an interface with limits.
pub(crate) trait Limited: Send + Sync + 'static {
    fn limits(&self) -> Vec<&Limit>;
    fn tier_of(&self, name: &SubjectName) -> Option<Tier>;
}

impl<St: Inspect, X: Limited> AnyLayer for Driver<St, X> {
    fn limited(&self) -> &dyn Limited {
        &self.face
    }

    fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn store(&self) -> AnyStore {
        AnyStore::new(self.store.clone())
    }

    fn inspect(&self) -> StoreReport {
        self.store.inspect()
    }
}

impl Limited for Http {
    fn limits(&self) -> Vec<&Limit> {
        self.limits.iter().map(|compiled| &compiled.limit).collect()
    }

    fn tier_of(&self, name: &SubjectName) -> Option<Tier> {
        self.tiers.as_ref()?.named(name)
    }
}

impl fmt::Debug for LayerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerHandle").field("limits", &self.limits()).finish_non_exhaustive()
    }
}
