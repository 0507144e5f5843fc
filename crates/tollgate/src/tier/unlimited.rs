use tollgate_engine::TierIndex;

use super::Tier;
use crate::Limit;

/// The tiers to which a limit does not apply.
#[derive(Debug)]
pub(crate) struct UnlimitedTiers {
    /// Whether the limit does not apply to clients without a tier either.
    without_tier: bool,
    /// By number; empty if the limit applies to all tiers.
    in_tiers: Box<[bool]>,
}

impl UnlimitedTiers {
    /// `tiers` contains the tiers' names, ordered by number.
    pub(crate) fn of(limit: &Limit, tiers: &[Tier]) -> Self {
        let has_all = !limit.is_only_in_tiers && limit.unlimited.is_empty();
        let tiers = if has_all { &[] } else { tiers };
        let in_tiers = tiers.iter().map(|tier| limit.is_unlimited_in(Some(tier))).collect();
        Self { without_tier: limit.is_only_in_tiers, in_tiers }
    }

    #[inline]
    pub(crate) fn contain(&self, TierIndex(tier): TierIndex) -> bool {
        self.in_tiers.get(usize::from(tier)).copied().unwrap_or(self.without_tier)
    }
}
