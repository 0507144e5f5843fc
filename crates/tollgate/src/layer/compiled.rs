//! A layer's limits, prepared for requests: costs, and header values for each tier.

use std::sync::Arc;

use tollgate_core::Cost;
use tollgate_engine::{AppliedLimit, Limit as Rule, TierIndex};

use crate::grpc::GrpcServices;
use crate::headers::PolicyFields;
use crate::tier::lookup::OwnQuotas;
use crate::tier::{Tier, TierSource, UnlimitedTiers};
use crate::{Costs, Limit, RequestHead};

pub(super) struct CompiledLimit {
    pub(super) limit: Limit,
    costs: Costs,
    /// The cost, if it is the same for all requests.
    uniform_cost: Option<Cost>,
    pub(super) base: PolicyFields,
    in_tiers: Box<[PolicyFields]>,
    pub(super) unlimited: UnlimitedTiers,
    /// The quotas of clients, if they are looked up.
    pub(super) quotas: Option<Box<OwnQuotas>>,
}

impl CompiledLimit {
    pub(super) fn new(limit: Limit, tiers: Option<&Tiers>, costs: &Costs) -> Self {
        let fields = |policy| {
            let fields = PolicyFields::new(policy).named(limit.shown_name());
            fields.hidden(limit.hides_headers).soft(limit.is_soft())
        };
        let in_tier = |tier: &Tier| fields(limit.policy_in(Some(tier)));
        let in_tiers = tiers.map(|tiers| tiers.names.iter().map(in_tier).collect());
        let base = fields(&limit.policy);
        let of_limit = base.clone();
        let quotas =
            limit.own_quotas(names_of(tiers), move |policy| Box::new(of_limit.of_client(policy)));
        let quotas = quotas.map(Box::new);
        let unlimited = limit.unlimited_tiers(names_of(tiers));
        let costs = limit.costs.as_ref().unwrap_or(costs).clone();
        let uniform_cost = costs.uniform_cost();
        let in_tiers = in_tiers.unwrap_or_default();
        Self { costs, uniform_cost, base, in_tiers, unlimited, quotas, limit }
    }

    /// Returns what the engine needs of this limit.
    pub(super) fn rule(&self, tiers: Option<&Tiers>) -> Rule {
        self.limit.rule(names_of(tiers))
    }

    #[inline]
    pub(super) fn fields<'a>(&'a self, applied: &'a AppliedLimit) -> &'a PolicyFields {
        if let Some(fields) = applied.own.as_ref().and_then(|own| own.prepared.downcast_ref()) {
            return fields;
        }
        // A layer without tiers has an empty list, so every index falls back to `base`.
        self.in_tiers.get(usize::from(applied.tier.0)).unwrap_or(&self.base)
    }

    #[inline]
    pub(super) fn cost(&self, head: &RequestHead<'_>, grpc: &GrpcServices) -> Cost {
        self.uniform_cost.unwrap_or_else(|| self.costs.among(head, grpc))
    }
}

pub(super) struct Tiers {
    /// `None` if all tiers are looked up.
    source: Option<Arc<dyn TierSource>>,
    names: Box<[Tier]>,
}

/// Each limit has a policy and header values for each tier. A [`QuotaLookup`](crate::tier::QuotaLookup)
/// is for more different quotas.
pub(super) const MAX_TIERS: usize = 1_024;

fn names_of(tiers: Option<&Tiers>) -> &[Tier] {
    tiers.map(|tiers| &*tiers.names).unwrap_or_default()
}

pub(super) fn tier_names<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Vec<Tier> {
    let mut names = Vec::new();
    for tier in limits.into_iter().flat_map(Limit::all_tiers) {
        if !names.contains(tier) {
            names.push(tier.clone());
        }
    }
    names
}

impl Tiers {
    /// Returns `None` if no limit has tiers.
    pub(super) fn new(source: Option<&Arc<dyn TierSource>>, limits: &[Limit]) -> Option<Self> {
        let names: Box<[_]> = tier_names(limits).into();
        (!names.is_empty()).then(|| Self { source: source.cloned(), names })
    }

    pub(super) fn of(&self, head: &RequestHead<'_>) -> TierIndex {
        let tier = self.source.as_ref().and_then(|source| source.tier(head));
        let number = tier.and_then(|tier| self.names.iter().position(|name| *name == tier));
        let number = number.and_then(|number| u16::try_from(number).ok());
        number.map_or_else(TierIndex::default, TierIndex)
    }

    #[cfg(feature = "metrics")]
    pub(super) fn named(&self, name: &crate::key::SubjectName) -> Option<Tier> {
        self.source.as_ref()?.named(name)
    }
}
