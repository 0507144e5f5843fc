use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::QuotaLookup;
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
}

debug_fields!(LimitQuotas, lookup, shares);
