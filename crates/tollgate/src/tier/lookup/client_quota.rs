use smallvec::SmallVec;
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
/// let by_day = own.clone().also(Quota::per_day(100_000));
/// let partner = ClientQuota::unlimited();
/// # let _ = (by_plan, free_reads, by_day, partner);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientQuota {
    pub(super) terms: QuotaOrTier,
    /// The client's further quotas, for other limits.
    pub(super) further: SmallVec<[Quota; 1]>,
    pub(super) costs: Option<Costs>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QuotaOrTier {
    Quota(Quota),
    /// The tier may be unknown to the limit. Then the limit's own quota applies.
    Tier(Tier),
    Unlimited,
}

impl ClientQuota {
    /// Returns the result for a client to which the limit does not apply.
    pub fn unlimited() -> Self {
        Self::of(QuotaOrTier::Unlimited)
    }

    /// Adds a quota that applies at the same time, under another limit: the first quota that is added
    /// has the number 1. See [`Limit::further_quota`](crate::Limit::further_quota).
    pub fn also(mut self, quota: Quota) -> Self {
        self.further.push(quota);
        self
    }

    /// Sets the client's request costs, which override the limit's. Under a concurrency limit, and
    /// for a `Limiter`, which gets the cost from its caller, they do not apply.
    pub fn costs(self, costs: Costs) -> Self {
        Self { costs: Some(costs), ..self }
    }

    /// Returns the client's quota with this number. A client without it is not limited by it.
    pub(super) fn numbered(&self, number: usize) -> QuotaOrTier {
        match (&self.terms, number.checked_sub(1)) {
            (QuotaOrTier::Quota(_), Some(further)) => {
                let quota = self.further.get(further).copied();
                quota.map_or(QuotaOrTier::Unlimited, QuotaOrTier::Quota)
            }
            (terms, _) => terms.clone(),
        }
    }

    /// Costs may contain closures, which cannot be compared.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let has_costs = self.costs.is_some() || other.costs.is_some();
        !has_costs && self.terms == other.terms && self.further == other.further
    }

    fn of(terms: QuotaOrTier) -> Self {
        Self { terms, further: SmallVec::new(), costs: None }
    }
}

impl From<Quota> for ClientQuota {
    fn from(quota: Quota) -> Self {
        Self::of(QuotaOrTier::Quota(quota))
    }
}

impl From<Tier> for ClientQuota {
    fn from(tier: Tier) -> Self {
        Self::of(QuotaOrTier::Tier(tier))
    }
}
