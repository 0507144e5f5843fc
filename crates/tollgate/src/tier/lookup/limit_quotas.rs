use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "metrics")]
use std::sync::atomic::Ordering;

#[cfg(feature = "metrics")]
use tollgate_core::Key;
use tollgate_core::{Algorithm, Policy, PolicyError, Quota};

use super::QuotaLookup;
#[cfg(feature = "metrics")]
use super::client_quota::QuotaOrTier;
use crate::key::KeySource;

/// Where a limit's quotas come from.
#[derive(Clone)]
pub(crate) struct LimitQuotas {
    pub(super) lookup: QuotaLookup,
    /// Finds the client to look up, if it is not the limit's key.
    pub(super) owner: Option<Arc<dyn KeySource>>,
    /// Whether the owner has been the limit's own key, so a key's quota can be found without a request.
    pub(super) owner_is_key: Arc<AtomicBool>,
    /// The limit grants these fractions of the client's quota, multiplied.
    pub(super) shares: Vec<(u32, u32)>,
    /// Whether a burst is left out if the policy's algorithm has none.
    pub(super) omits_burst: bool,
    /// Which of the client's quotas the limit grants: 0, or the number of a further quota.
    pub(super) number: usize,
}

impl LimitQuotas {
    pub(crate) fn new(lookup: &QuotaLookup, owner: Option<Arc<dyn KeySource>>) -> Self {
        Self {
            lookup: lookup.clone(),
            owner_is_key: Arc::new(AtomicBool::new(owner.is_none())),
            owner,
            shares: Vec::new(),
            omits_burst: false,
            number: 0,
        }
    }

    pub(crate) fn further(self, number: usize) -> Self {
        Self { number, ..self }
    }

    pub(crate) const fn omitting_burst(mut self) -> Self {
        self.omits_burst = true;
        self
    }

    pub(crate) fn fraction(mut self, numerator: u32, denominator: u32) -> Self {
        self.shares.push((numerator, denominator));
        self
    }

    /// Returns the policy for a client with this quota.
    pub(crate) fn policy(&self, base: &Policy, quota: Quota) -> Result<Policy, PolicyError> {
        // The limit's permits are renewed according to its own time to live.
        let quota = match base.is_concurrency() {
            true => Quota::new(quota.limit(), base.quota().window()),
            false if self.omits_burst && !base.algorithm().is_some_and(Algorithm::is_bucket) => {
                quota.without_burst()
            }
            false => quota,
        };
        let mut shares = self.shares.iter();
        shares.try_fold(base.with_quota(quota)?, |policy, (part, of)| policy.share(*part, *of))
    }

    /// Returns the last known quota of the client with this key, if the key alone identifies the client.
    #[cfg(feature = "metrics")]
    pub(crate) fn last(&self, key: &Key) -> Option<QuotaOrTier> {
        let is_key = self.owner_is_key.load(Ordering::Relaxed);
        let answer = self.lookup.last(key).filter(|_| is_key)?;
        Some(answer.known?.quota.as_ref()?.numbered(self.number))
    }
}

debug_fields!(LimitQuotas, lookup, shares);
