use tollgate_core::Quota;

use crate::Costs;
use crate::tier::Tier;

/// A client's quota or tier, and optionally its costs: the result of a
/// [`QuotaLookup`](super::QuotaLookup).
///
/// ```
/// use tollgate::tier::{ClientQuota, Tier};
/// use tollgate::{Costs, Quota};
///
/// let own = ClientQuota::from(Quota::per_minute(5_000).burst(500));
/// let by_plan = ClientQuota::from(Tier::from("pro"));
/// let free_reads = own.clone().costs(Costs::by_method().method(http::Method::GET, 0));
/// # let _ = (by_plan, free_reads);
/// ```
#[derive(Clone, Debug)]
pub struct ClientQuota {
    pub(super) terms: QuotaOrTier,
    pub(super) costs: Option<Costs>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QuotaOrTier {
    Quota(Quota),
    /// The tier may be unknown to the limit. Then the limit's own quota applies.
    Tier(Tier),
}

impl ClientQuota {
    /// Sets the client's request costs, which override the limit's. Under a concurrency limit, and
    /// for a `Limiter`, which gets the cost from its caller, they do not apply.
    #[must_use]
    pub fn costs(self, costs: Costs) -> Self {
        Self { costs: Some(costs), ..self }
    }

    /// Costs may contain closures, which cannot be compared.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.costs.is_none() && other.costs.is_none() && self.terms == other.terms
    }
}

impl From<Quota> for ClientQuota {
    fn from(quota: Quota) -> Self {
        Self { terms: QuotaOrTier::Quota(quota), costs: None }
    }
}

impl From<Tier> for ClientQuota {
    fn from(tier: Tier) -> Self {
        Self { terms: QuotaOrTier::Tier(tier), costs: None }
    }
}
