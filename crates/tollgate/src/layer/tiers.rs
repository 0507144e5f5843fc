//! Which quota of its limits a request is held against.

use std::sync::Arc;

use crate::headers::PolicyFields;
#[cfg(feature = "metrics")]
use crate::key::SubjectName;
use crate::tier::{Tier, TierSource};
use crate::{Head, Limit};

/// The tiers of a layer: those that its limits have quotas for.
pub(super) struct Tiers {
    source: Arc<dyn TierSource>,
    names: Box<[Tier]>,
}

/// The tier of a request, as its number in [`Tiers`]; the last means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InTier(u8);

impl InTier {
    pub(super) const NONE: Self = Self(u8::MAX);
}

/// More tiers than this a layer cannot tell apart.
pub(super) const MAX_TIERS: usize = u8::MAX as usize;

/// The tiers that a limit has quotas for, each once.
pub(super) fn names<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Vec<Tier> {
    let mut names = Vec::new();
    for (tier, _) in limits.into_iter().flat_map(Limit::tiers) {
        if !names.contains(tier) {
            names.push(tier.clone());
        }
    }
    names
}

impl Tiers {
    /// `None` where tiers make no difference, so that nobody is asked for them.
    pub(super) fn new(source: Option<&Arc<dyn TierSource>>, limits: &[Limit]) -> Option<Self> {
        let names: Box<[_]> = names(limits).into();
        let source = Arc::clone(source.filter(|_| !names.is_empty())?);
        Some(Self { source, names })
    }

    pub(super) fn of(&self, head: &Head<'_>) -> InTier {
        let tier = self.source.tier(head);
        let number = tier.and_then(|tier| self.names.iter().position(|name| *name == tier));
        number.and_then(|number| u8::try_from(number).ok()).map_or(InTier::NONE, InTier)
    }

    /// The fields of a limit's policy in each tier, in their order.
    pub(super) fn fields(&self, limit: &Limit) -> Box<[PolicyFields]> {
        let policies = self.names.iter().map(|tier| limit.policy_in(Some(tier)));
        policies.map(PolicyFields::new).collect()
    }

    /// The tier of a subject that an operator names.
    #[cfg(feature = "metrics")]
    pub(super) fn named(&self, name: &SubjectName) -> Option<Tier> {
        self.source.named(name)
    }
}

/// The fields of a policy for each tier and, where there is none, for everybody.
pub(super) struct Fields {
    everybody: PolicyFields,
    in_tiers: Box<[PolicyFields]>,
}

impl Fields {
    pub(super) fn new(limit: &Limit, tiers: Option<&Tiers>) -> Self {
        Self {
            everybody: PolicyFields::new(&limit.policy),
            in_tiers: tiers.map(|tiers| tiers.fields(limit)).unwrap_or_default(),
        }
    }

    #[inline]
    pub(super) fn of(&self, tier: InTier) -> &PolicyFields {
        // A layer without tiers has an empty list, which holds no number.
        self.in_tiers.get(usize::from(tier.0)).unwrap_or(&self.everybody)
    }
}
