//! A layer's limits, prepared for requests: header values, and quotas for each tier.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Key, OnStoreError, StoreError};

use super::row::{Row, TierIndex};
use crate::grpc::GrpcServices;
use crate::headers::PolicyFields;
use crate::tier::{Tier, TierSource};
use crate::{Costs, Limit, RequestHead};

pub(super) struct CompiledLimit {
    pub(super) limit: Limit,
    costs: Costs,
    /// The cost, if it is the same for all requests.
    uniform_cost: Option<Cost>,
    base: PolicyFields,
    in_tiers: Box<[PolicyFields]>,
}

impl CompiledLimit {
    pub(super) fn new(limit: Limit, tiers: Option<&Tiers>, costs: &Costs) -> Self {
        let fields =
            |policy| PolicyFields::new(policy).hidden(limit.hides_headers).soft(limit.is_soft());
        let in_tier = |tier: &Tier| fields(limit.policy_in(Some(tier)));
        let in_tiers = tiers.map(|tiers| tiers.names.iter().map(in_tier).collect());
        let base = fields(&limit.policy);
        let costs = limit.costs.as_ref().unwrap_or(costs).clone();
        let uniform_cost = costs.uniform_cost();
        Self { costs, uniform_cost, base, in_tiers: in_tiers.unwrap_or_default(), limit }
    }

    #[inline]
    pub(super) fn fields(&self, tier: TierIndex) -> &PolicyFields {
        // A layer without tiers has an empty list, so every index falls back to `base`.
        self.in_tiers.get(usize::from(tier.0)).unwrap_or(&self.base)
    }

    #[inline]
    pub(super) fn charge<'a>(&'a self, key: &'a Key, cost: Cost, tier: TierIndex) -> Charge<'a> {
        Charge { policy: self.fields(tier).policy(), ..self.limit.charge(key, cost) }
    }

    #[inline]
    pub(super) fn cost(&self, head: &RequestHead<'_>, grpc: &GrpcServices) -> Cost {
        self.uniform_cost.unwrap_or_else(|| self.costs.among(head, grpc))
    }

    pub(super) fn fails_closed(&self, error: &StoreError) -> bool {
        self.limit.enforce && self.on_error(error) != OnStoreError::Open
    }

    pub(super) fn on_error(&self, error: &StoreError) -> OnStoreError {
        self.limit.policy.on_error(error).unwrap_or_default()
    }
}

/// A layer's limits.
pub(super) struct CompiledLimits(pub(super) Box<[CompiledLimit]>);

impl CompiledLimits {
    #[inline]
    pub(super) fn of(&self, row: &Row) -> &CompiledLimit {
        &self.0[usize::from(row.limit)]
    }

    /// Returns the row's policy in the request's tier, with its header values.
    #[inline]
    pub(super) fn fields(&self, row: &Row) -> &PolicyFields {
        self.of(row).fields(row.tier)
    }

    #[inline]
    pub(super) fn charge<'a>(&'a self, row: &'a Row) -> Charge<'a> {
        self.of(row).charge(&row.key, row.cost, row.tier)
    }

    pub(super) fn charges<'a>(&'a self, rows: &'a [Row]) -> SmallVec<[Charge<'a>; 4]> {
        rows.iter().map(|row| self.charge(row)).collect()
    }

    /// Returns the rows with policies that reject a request that the store could not decide. This
    /// includes policies with a local fallback, because their local store could not decide either.
    /// But if another policy fails closed, the local store was not called, so only closed policies
    /// reject.
    pub(super) fn failing_closed<'a>(
        &'a self,
        rows: &'a [Row],
        error: &'a StoreError,
    ) -> impl Iterator<Item = &'a Row> {
        let is_closed = move |row: &Row| self.of(row).on_error(error) == OnStoreError::Closed;
        let rejecting = rows.iter().filter(move |row| self.of(row).fails_closed(error));
        let any_is_closed = rejecting.clone().any(is_closed);
        rejecting.filter(move |row| !any_is_closed || is_closed(row))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.0.iter().map(|compiled| &compiled.limit)
    }
}

pub(super) struct Tiers {
    source: Arc<dyn TierSource>,
    names: Box<[Tier]>,
}

pub(super) const MAX_TIERS: usize = u8::MAX as usize;

pub(super) fn tier_names<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Vec<Tier> {
    let mut names = Vec::new();
    for (tier, _) in limits.into_iter().flat_map(Limit::tiers) {
        if !names.contains(tier) {
            names.push(tier.clone());
        }
    }
    names
}

impl Tiers {
    /// Returns `None` if no limit has tiers, because the source is not needed then.
    pub(super) fn new(source: Option<&Arc<dyn TierSource>>, limits: &[Limit]) -> Option<Self> {
        let names: Box<[_]> = tier_names(limits).into();
        let source = Arc::clone(source.filter(|_| !names.is_empty())?);
        Some(Self { source, names })
    }

    pub(super) fn of(&self, head: &RequestHead<'_>) -> TierIndex {
        let tier = self.source.tier(head);
        let number = tier.and_then(|tier| self.names.iter().position(|name| *name == tier));
        let number = number.and_then(|number| u8::try_from(number).ok());
        number.map_or_else(TierIndex::default, TierIndex)
    }

    #[cfg(feature = "metrics")]
    pub(super) fn named(&self, name: &crate::key::SubjectName) -> Option<Tier> {
        self.source.named(name)
    }
}
