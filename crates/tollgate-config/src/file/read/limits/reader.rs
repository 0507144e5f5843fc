//! Reads the keys that all limits share.

use std::sync::Arc;

use tollgate::Policy;
use tollgate::policy::{Algorithm, Cost};
use tollgate_engine::Methods;

use super::super::context::{FileContext, inherited};
use super::super::costs;
use super::super::levels;
use super::super::options::{self, LeaseOption, PenaltyTarget, QueueOption};
use super::super::policy::{self, OnStoreFailure, Section};
use super::super::quotas::{self, Quotas};
use super::super::settling::{self, Excess, PolicyContext};
use crate::code;
use crate::file::tables::Policy as PolicyKeys;
use crate::plan::{CostTable, LimitPlan, PathMatch, PenaltyPlan, QuotaPlan, Whose};
use crate::yaml::problem::Checked;
use crate::yaml::typed::Setting;

pub(super) struct LimitReader<'a, 'b> {
    /// The route's paths.
    pub(super) path: &'b PathMatch,
    /// The costs for all policies without their own `costs`.
    pub(super) costs: Option<&'b Arc<CostTable>>,
    pub(super) file: &'b FileContext<'a>,
}

impl<'a> LimitReader<'a, '_> {
    pub(super) fn everywhere(
        &self,
        keys: &'a PolicyKeys,
        default: &str,
        whose: Whose,
    ) -> Checked<(LimitPlan, Option<Quotas<'a>>)> {
        let section = keys.section();
        let name = keys.identifier.there().map_or(default, |name| name);
        self.file.names.take(name, &keys.identifier.location());
        if !quotas::is_in(section) {
            let named = NamedLimit { name: Ok(name), whose, algorithm: None };
            let options = self.options(section, named)?;
            return Ok((options.limit(Vec::new(), Vec::new())?, None));
        }
        let algorithm = policy::algorithm_everywhere(section, self.file);
        let also = &section.rules.also;
        let everybody =
            algorithm.and_then(|algorithm| quotas::of_section(section.quota(), also, algorithm));
        let named = NamedLimit { name: Ok(name), whose, algorithm: algorithm.ok() };
        let options = self.options(section, named);
        let algorithm = algorithm?;
        let tiers = match whose {
            Whose::Client => quotas::of_tiers(self.file.limiter, algorithm),
            Whose::Everybody | Whose::Group(_) => Ok(Vec::new()),
        };
        let quotas = Quotas { everybody: everybody?, tiers: tiers? };
        let plans = quotas.plans(name, algorithm, None, &self.file.names);
        let levels = levels::plans(&section.rules.levels, name, whose, algorithm, self.file);
        let mut limit = options?.limit(plans?, levels?)?;
        limit.tenants = self.file.tenants_of(whose, None);
        for level in &mut limit.levels {
            level.tenants = self.file.tenants_of(level.whose, None);
        }
        self.check_costs(&limit, section, &Methods::default(), self.path);
        Ok((limit, Some(quotas)))
    }

    pub(super) fn options(
        &self,
        section: Section<'_>,
        NamedLimit { name, whose, algorithm }: NamedLimit<'_>,
    ) -> Checked<LimitOptions> {
        let rules = section.rules;
        rules.expire_seconds.no_effect("here", "client state expires automatically");
        let costs = costs::costs(&rules.costs, self.costs);
        let on_store_error = policy::on_store_error(rules, self.file);
        let shed = policy::shed(rules, self.file);
        let is_shadow = inherited(&rules.shadow, &self.file.limiter.shadow)?;
        let (on_store_error, shed) = (on_store_error?, shed?);
        let can_fail = self.file.can_fail;
        let context = PolicyContext { algorithm, on_store_error, is_shadow, can_fail };
        let excess = settling::excess(rules, context);
        let counts = settling::counts(rules, context);
        let reserve = settling::reserve(rules, context);
        let lease = options::lease(rules, can_fail);
        let (Excess { mode, queue }, counts) = (excess?, counts?);
        let forgives = settling::forgives(rules, context, whose, queue.is_some());
        let target = PenaltyTarget { whose, mode, counts: counts.as_ref() };
        let in_flight = options::in_flight(&rules.concurrency, name?, &self.file.names);
        let penalty = options::penalty(rules, name?, &target, &self.file.names);
        let estimate = rules.reserve.there().map(|reserve| reserve.units.value()).transpose()?;
        let costs = match estimate.flatten() {
            Some(units) => Arc::new(CostTable::flat(Cost::new(units))),
            None => costs?,
        };
        let limit = LimitPlan {
            costs,
            hide_headers: rules.hide_headers.value()?,
            counts,
            forgives: forgives?,
            reserve: reserve?,
            in_flight: in_flight?,
            penalty: penalty?,
            ..LimitPlan::new(name?, whose, mode)
        };
        let failure = OnStoreFailure { on_store_error, shed };
        Ok(LimitOptions { limit, failure, queue, lease: lease? })
    }

    /// A request that costs more than the capacity would always be denied.
    pub(super) fn check_costs(
        &self,
        limit: &LimitPlan,
        section: Section<'_>,
        methods: &Methods,
        path: &PathMatch,
    ) {
        let (cost, request) = limit.costs.highest(methods, path);
        let cost = cost.get();
        let tiers = self.file.limiter.tiers.there().map(|tiers| &tiers.quotas.all[..]);
        let names = tiers.unwrap_or_default().iter().map(|(name, _)| name);
        let tiers =
            names.enumerate().map(|(tier, name)| (Some(tier), format!(" in tier `{name}`")));
        let low = std::iter::once((None, String::new())).chain(tiers).find_map(|(tier, name)| {
            let of_levels = limit.levels.iter().filter(|_| tier.is_none());
            let of_levels = of_levels.flat_map(LimitPlan::policies);
            let all = limit.quotas_in(tier).chain(of_levels);
            let policy = { all }.find(|policy| policy.capacity() < cost)?;
            Some((policy, name))
        });
        let Some((policy, tier)) = low else { return };
        let location =
            section.capacity().map_or_else(|| (*section.info.location).clone(), Setting::location);
        let key =
            if policy.algorithm().is_some_and(Algorithm::is_bucket) { "burst" } else { "limit" };
        location.error(
            code::COST_ABOVE_CAPACITY,
            format!(
                "policy `{}`{tier} grants at most {} units at the same time, but {request} costs \
                 {cost}, so it would always be denied with 403",
                policy.name().escape_debug(),
                policy.capacity()
            ),
            format!("raise `{key}` to at least {cost}, or lower this cost with `costs`"),
        );
    }
}

pub(super) struct NamedLimit<'a> {
    pub(super) name: Checked<&'a str>,
    pub(super) whose: Whose,
    pub(super) algorithm: Option<Algorithm>,
}

pub(super) struct LimitOptions {
    limit: LimitPlan,
    failure: OnStoreFailure,
    queue: Option<QueueOption>,
    lease: Option<LeaseOption>,
}

impl LimitOptions {
    /// The limit with these quotas, and with the same limit for groups.
    pub(super) fn limit(
        self,
        mut quotas: Vec<QuotaPlan>,
        mut levels: Vec<(Whose, QuotaPlan)>,
    ) -> Checked<LimitPlan> {
        let Self { mut limit, failure, queue, lease } = self;
        limit.in_flight = limit.in_flight.map(|policy| failure.of(policy));
        limit.penalty = limit
            .penalty
            .map(|penalty| PenaltyPlan { policy: failure.of(penalty.policy), ..penalty });
        if quotas.is_empty() {
            if let Some(queue) = queue {
                return Err(queue.without_quota());
            }
            // A concurrency limit counts requests, not their cost.
            limit.costs = Arc::new(CostTable::flat(Cost::ONE));
            limit.counts = None;
            limit.reserve = None;
        }
        for quota in quotas.iter_mut().chain(levels.iter_mut().map(|(_, quota)| quota)) {
            for policy in quota.everybody.iter_mut().chain(quota.tiers.iter_mut().flatten()) {
                let mut of_limit = failure.of(policy.clone());
                if let Some(queue) = &queue {
                    of_limit = queue.of(of_limit)?;
                }
                if let Some(lease) = &lease {
                    of_limit = lease.of(of_limit)?;
                }
                *policy = of_limit;
            }
        }
        limit.quotas = quotas;
        let of_group = |(whose, quota): (Whose, QuotaPlan)| LimitPlan {
            name: quota.everybody.as_ref().map(Policy::name).unwrap_or_default().to_owned(),
            quotas: vec![quota],
            whose,
            in_flight: None,
            penalty: None,
            // A client's success must not forgive what the other clients of its group have used.
            forgives: None,
            ..limit.clone()
        };
        limit.levels = levels.into_iter().map(of_group).collect();
        Ok(limit)
    }
}
