//! A layer without its types, for the admin router and metrics.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::{Charge, Cost, Key, Receipt, Settlement, StoreError, Verdict};

use super::service::{RateLimit, RateLimitLayer};
use super::state::LayerState;
use crate::Limit;
use crate::key::SubjectName;
use crate::observe::ObservedPolicy;
use crate::status::{Inspect, StoreReport};
use crate::tier::Tier;

/// A [`RateLimitLayer`](super::RateLimitLayer) without its types, for admin tools. Clones are
/// handles of one layer.
#[derive(Clone)]
pub struct LayerHandle(Arc<dyn AnyLayer>);

/// The answer of a store, whatever its type.
type Answer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl<St: Inspect, M> RateLimitLayer<St, M> {
    /// A handle of this layer.
    pub fn handle(&self) -> LayerHandle {
        LayerHandle(Arc::clone(&self.state) as Arc<dyn AnyLayer>)
    }
}

impl<S, St: Inspect, M> RateLimit<S, St, M> {
    /// A handle of the layer around this service.
    pub fn handle(&self) -> LayerHandle {
        LayerHandle(Arc::clone(&self.state) as Arc<dyn AnyLayer>)
    }
}

impl LayerHandle {
    /// Returns the limits of the layer, in their order.
    pub fn limits(&self) -> Vec<&Limit> {
        self.0.limits()
    }

    /// Returns the report of the layer's store.
    pub fn store(&self) -> StoreReport {
        self.0.store()
    }

    pub(crate) fn observed(&self, limit: usize) -> &ObservedPolicy {
        self.0.observed(limit)
    }

    /// The decision for `key` under a limit, without a charge. The state is one for all tiers, and the
    /// remainder depends on the quota.
    pub fn peek(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> Answer<Verdict> {
        self.0.peek(limit, tier, key)
    }

    /// The tier of a subject, if the source of tiers finds it without a request.
    pub fn tier_of(&self, name: &SubjectName) -> Option<Tier> {
        self.0.tier_of(name)
    }

    /// Forgets the used units of `key` under a limit.
    pub fn reset(&self, limit: &Limit, key: &Key) -> Answer<()> {
        self.0.reset(limit, key)
    }

    /// Corrects a charge, see [`Store::settle`](crate::Store::settle).
    pub fn settle(&self, receipt: &Receipt, actual: Cost) -> Answer<Settlement> {
        self.0.settle(receipt, actual)
    }
}

trait AnyLayer: Send + Sync {
    fn limits(&self) -> Vec<&Limit>;
    fn store(&self) -> StoreReport;
    fn observed(&self, limit: usize) -> &ObservedPolicy;
    fn peek(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> Answer<Verdict>;
    fn tier_of(&self, name: &SubjectName) -> Option<Tier>;
    fn reset(&self, limit: &Limit, key: &Key) -> Answer<()>;
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Answer<Settlement>;
}

impl<St: Inspect> AnyLayer for LayerState<St> {
    fn limits(&self) -> Vec<&Limit> {
        self.limits().collect()
    }

    fn store(&self) -> StoreReport {
        self.store.inspect()
    }

    fn observed(&self, limit: usize) -> &ObservedPolicy {
        self.telemetry.policy(limit)
    }

    fn peek(&self, limit: &Limit, tier: Option<&Tier>, key: &Key) -> Answer<Verdict> {
        let charge = limit.charge(key, Cost::ZERO);
        Box::pin(self.store.decide(&[Charge { policy: limit.policy_in(tier), ..charge }]))
    }

    fn tier_of(&self, name: &SubjectName) -> Option<Tier> {
        self.tiers.as_ref()?.named(name)
    }

    fn reset(&self, limit: &Limit, key: &Key) -> Answer<()> {
        Box::pin(self.store.reset(limit.policy(), key))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Answer<Settlement> {
        Box::pin(self.store.settle(receipt, actual))
    }
}

impl fmt::Debug for LayerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerHandle").field("limits", &self.limits()).finish_non_exhaustive()
    }
}
