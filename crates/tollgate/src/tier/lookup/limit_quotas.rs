use std::sync::Arc;

use super::QuotaLookup;
use crate::key::KeySource;

/// Where a limit's quotas come from.
#[derive(Clone)]
pub(crate) struct LimitQuotas {
    pub(super) lookup: QuotaLookup,
    /// Finds the client to look up, if it is not the limit's key.
    pub(super) owner: Option<Arc<dyn KeySource>>,
    /// The limit grants these fractions of the client's quota, multiplied.
    pub(super) shares: Vec<(u32, u32)>,
}

impl LimitQuotas {
    pub(crate) fn new(lookup: &QuotaLookup, owner: Option<Arc<dyn KeySource>>) -> Self {
        Self { lookup: lookup.clone(), owner, shares: Vec::new() }
    }

    pub(crate) fn fraction(mut self, numerator: u32, denominator: u32) -> Self {
        self.shares.push((numerator, denominator));
        self
    }
}

debug_fields!(LimitQuotas, lookup, shares);
