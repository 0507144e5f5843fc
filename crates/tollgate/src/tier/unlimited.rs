use tollgate_engine::TierIndex;

/// The tiers to which a limit does not apply.
#[derive(Debug)]
pub(crate) struct UnlimitedTiers {
    /// Whether the limit does not apply to clients without a tier either.
    pub(crate) without_tier: bool,
    /// By number; empty if the limit applies to all tiers.
    pub(crate) in_tiers: Box<[bool]>,
}

impl UnlimitedTiers {
    #[inline]
    pub(crate) fn contain(&self, TierIndex(tier): TierIndex) -> bool {
        self.in_tiers.get(usize::from(tier)).copied().unwrap_or(self.without_tier)
    }
}
