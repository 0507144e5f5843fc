use std::sync::Arc;

use http::Method;
use tollgate::Policy;
use tollgate::policy::{Cost, OnStoreError};
use tollgate::store::Micros;
use tollgate_engine::{MethodCosts, Methods, Mode};
use tollgate_llm::Models;

use super::{PathMatch, ReservePlan, SettleBy, Statuses};
use crate::file::tables::ForgiveOn;
use tollgate_proxy::path::{PathFault, in_all_readings, other_readings};

/// A route's limits. All of `global`, `client` and the first matching api apply, and either all of
/// these charge the request or none does. Routes that inherit a limit share its quota.
#[derive(Clone, Debug, Default)]
pub struct RouteLimits {
    pub global: Option<Arc<LimitPlan>>,
    pub client: Option<Arc<LimitPlan>>,
    pub apis: Arc<[ApiPlan]>,
}

impl RouteLimits {
    pub fn all(&self) -> impl Iterator<Item = &LimitPlan> {
        self.everywhere().chain(self.apis.iter().flat_map(ApiPlan::limits))
    }

    pub fn everywhere(&self) -> impl Iterator<Item = &LimitPlan> {
        self.global.iter().chain(&self.client).flat_map(|limit| limit.with_levels())
    }

    /// The first api that matches a request to a normalized path, in any of the path's readings.
    ///
    /// # Errors
    /// Two readings match different apis.
    pub fn api(&self, method: &Method, path: &str) -> Result<Option<usize>, PathFault> {
        in_all_readings(path, |path| {
            let matches =
                |api: &ApiPlan| api.methods.contain(method.as_str()) && api.path.matches(path);
            self.apis.iter().position(matches)
        })
    }

    pub fn met(&self) -> impl Iterator<Item = Vec<&LimitPlan>> {
        let apis = self.apis.iter().map(Some).chain([None]);
        apis.map(|api| self.everywhere().chain(api.into_iter().flat_map(ApiPlan::limits)).collect())
    }

    /// Whether both contain the same limits, inherited from the same place.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        let same = |one: &Option<Arc<LimitPlan>>, other: &Option<Arc<LimitPlan>>| match (one, other)
        {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same(&self.global, &other.global)
            && same(&self.client, &other.client)
            && Arc::ptr_eq(&self.apis, &other.apis)
    }
}

#[derive(Clone, Debug)]
pub struct ApiPlan {
    pub methods: Methods,
    pub path: PathMatch,
    pub limit: LimitPlan,
    pub llm: Option<Arc<LlmPlan>>,
}

/// Budgets for language models. The request bodies contain the costs.
#[derive(Clone, Debug)]
pub struct LlmPlan {
    /// Limits in tokens and in money, and all limits of levels.
    pub budgets: Vec<LimitPlan>,
    pub models: Models,
    /// The maximum request bytes that are read before the decision.
    pub max_read: usize,
}

impl LlmPlan {
    /// Whether a limit counts tokens or money.
    pub fn reads_usage(&self) -> bool {
        self.budgets.iter().any(|limit| limit.usage().is_some())
    }
}

impl ApiPlan {
    pub fn limits(&self) -> impl Iterator<Item = &LimitPlan> {
        self.limit.with_levels().chain(self.llm.iter().flat_map(|llm| &llm.budgets))
    }
}

#[derive(Clone, Debug)]
pub struct LimitPlan {
    pub name: String,
    /// The quotas that apply at the same time. The first has the limit's name.
    pub quotas: Vec<QuotaPlan>,
    pub whose: Whose,
    pub costs: Arc<CostTable>,
    /// What its charges do with requests beyond their quota, except for the penalty. If its quotas
    /// queue in the store, only the concurrency limit lets requests wait.
    pub mode: Mode,
    /// Whether the rate limit headers leave its policies out.
    pub hide_headers: bool,
    /// Which responses count; by default all.
    pub counts: Option<Vec<Statuses>>,
    /// Which responses forgive what the key has used; by default none.
    pub forgives: Option<ForgiveOn>,
    /// How an estimated charge is corrected.
    pub reserve: Option<ReservePlan>,
    /// How many requests may be in flight, if that is limited. Each tier has the same limit.
    pub in_flight: Option<Policy>,
    pub penalty: Option<PenaltyPlan>,
    /// The same limit for the groups of levels. These limits have no levels.
    pub levels: Vec<Self>,
    /// The tenants whose numbers replace its quotas, if there are any.
    pub tenants: Option<TenantShare>,
}

/// The tenants' numbers, or a fraction of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// The number of the tenants in the plan.
    pub tenants: usize,
    /// Numerator and denominator of the part that an api grants.
    pub share: Option<(u32, u32)>,
}

#[derive(Clone, Debug)]
pub struct PenaltyPlan {
    pub policy: Policy,
    /// Which responses are strikes; by default denials are.
    pub failures: Option<Vec<Statuses>>,
}

/// A quota, which may be different in each tier.
#[derive(Clone, Debug)]
pub struct QuotaPlan {
    /// The policy for clients without a tier, if they have this quota.
    pub everybody: Option<Policy>,
    /// Each tier's policy, with the same name, if the tier has this quota. Empty if all tiers have
    /// the same quota.
    pub tiers: Vec<Option<Policy>>,
}

impl QuotaPlan {
    pub const fn of(everybody: Policy) -> Self {
        Self { everybody: Some(everybody), tiers: Vec::new() }
    }

    /// The policies of clients without a tier and of all tiers.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.everybody.iter().chain(self.tiers.iter().flatten())
    }

    pub fn policy_in(&self, tier: Option<usize>) -> Option<&Policy> {
        match tier.and_then(|tier| self.tiers.get(tier)) {
            Some(policy) => policy.as_ref(),
            None => self.everybody.as_ref(),
        }
    }
}

/// One of the charges that a limit makes for a request.
#[derive(Clone, Copy, Debug)]
pub enum ChargePlan<'p> {
    Quota(&'p QuotaPlan),
    /// Costs 1 for each request, as does a penalty.
    InFlight(&'p Policy),
    Penalty(&'p PenaltyPlan),
}

impl<'p> ChargePlan<'p> {
    /// The policy for clients in a tier, if the charge applies to them.
    pub fn policy_in(self, tier: Option<usize>) -> Option<&'p Policy> {
        match self {
            Self::Quota(quota) => quota.policy_in(tier),
            Self::InFlight(policy) => Some(policy),
            Self::Penalty(penalty) => Some(&penalty.policy),
        }
    }

    /// The policy for clients without a tier, or in any tier that has one.
    pub fn any_policy(self) -> Option<&'p Policy> {
        match self {
            Self::Quota(quota) => quota.policies().next(),
            charge => charge.policy_in(None),
        }
    }
}

impl LimitPlan {
    /// A limit without quotas and options. Each request costs 1 unit.
    pub(crate) fn new(name: &str, whose: Whose, mode: Mode) -> Self {
        Self {
            name: name.to_owned(),
            quotas: Vec::new(),
            whose,
            costs: Arc::new(CostTable::flat(Cost::ONE)),
            mode,
            hide_headers: false,
            counts: None,
            forgives: None,
            reserve: None,
            in_flight: None,
            penalty: None,
            levels: Vec::new(),
            tenants: None,
        }
    }

    /// The limit, followed by its levels.
    pub fn with_levels(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.levels)
    }

    /// The limit's charges, in order.
    pub fn charges(&self) -> impl Iterator<Item = ChargePlan<'_>> {
        let quotas = self.quotas.iter().map(ChargePlan::Quota);
        let in_flight = self.in_flight.iter().map(ChargePlan::InFlight);
        quotas.chain(in_flight).chain(self.penalty.iter().map(ChargePlan::Penalty))
    }

    /// What a charge does with requests beyond its quota.
    pub fn mode_of(&self, charge: ChargePlan<'_>) -> Mode {
        match charge {
            ChargePlan::Quota(_) if self.max_queue_time().is_some() => Mode::Reject,
            ChargePlan::Quota(_) | ChargePlan::InFlight(_) => self.mode,
            ChargePlan::Penalty(_) => self.mode.of_penalty(),
        }
    }

    /// The first quota for clients without a tier.
    pub fn policy(&self) -> Option<&Policy> {
        self.quotas.first()?.everybody.as_ref()
    }

    /// Returns a quota's number.
    pub fn number_of(&self, quota: &QuotaPlan) -> Option<usize> {
        self.quotas.iter().position(|it| std::ptr::eq(it, quota))
    }

    pub fn quotas_in(&self, tier: Option<usize>) -> impl Iterator<Item = &Policy> {
        self.quotas.iter().filter_map(move |quota| quota.policy_in(tier))
    }

    /// How long requests beyond its quotas queue in the store, if they do.
    pub fn max_queue_time(&self) -> Option<Micros> {
        self.policies().find_map(Policy::max_queue_time)
    }

    /// Whether it can deny requests, which limits that only shadow or annotate cannot.
    pub const fn enforces(&self) -> bool {
        self.mode.enforces()
    }

    pub fn on_store_error(&self) -> OnStoreError {
        self.any().and_then(Policy::on_store_error).unwrap_or_default()
    }

    /// The failure policy for requests that are shed, if it differs.
    pub fn shed(&self) -> Option<OnStoreError> {
        let shed = self.any().and_then(Policy::shed);
        shed.filter(|shed| *shed != self.on_store_error())
    }

    /// Any of its policies, because all have the same failure policy.
    fn any(&self) -> Option<&Policy> {
        let penalty = self.penalty.as_ref().map(|penalty| &penalty.policy);
        // A limit may have quotas only in tiers.
        let quotas = self.policies();
        quotas.chain(&self.in_flight).chain(penalty).next()
    }

    /// How the usage of a language model is charged, if the limit is such a budget.
    pub fn usage(&self) -> Option<SettleBy> {
        self.reserve.map(|reserve| reserve.settle).filter(|settle| settle.is_usage())
    }

    /// Whether its quota is leased, so units are spent without calling the store.
    pub fn is_leased(&self) -> bool {
        self.policy().is_some_and(|policy| policy.lease().is_some())
    }

    /// The policies of all quotas and all tiers.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.quotas.iter().flat_map(QuotaPlan::policies)
    }
}

/// How CORS preflights are limited. Browsers send them without credentials, so the gateway knows
/// only the client's address.
#[derive(Clone, Debug)]
pub enum Preflights {
    /// They use no quota, but this policy limits each address.
    Limited(Arc<LimitPlan>),
    /// They are limited like other requests.
    Charged,
    Unlimited,
}

impl Preflights {
    /// The policy's name in denials and metrics.
    pub const NAME: &str = "cors/preflights";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All clients together.
    Everybody,
    Client,
    /// The clients of a group together, on the level with this number.
    Group(usize),
}

/// The costs of requests: the first path rule that matches, otherwise the method's cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    pub paths: Vec<CostRule>,
    pub methods: MethodCosts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostRule {
    pub methods: Methods,
    pub path: PathMatch,
    pub cost: Cost,
}

impl CostTable {
    /// The same cost for every request.
    pub const fn flat(cost: Cost) -> Self {
        Self { paths: Vec::new(), methods: MethodCosts::flat(cost) }
    }

    /// The lowest cost above zero.
    pub fn lowest(&self) -> Cost {
        let methods = self.methods.listed().map(|(_, cost)| cost).chain([self.methods.other()]);
        let all = methods.chain(self.paths.iter().map(|rule| rule.cost));
        all.filter(|cost| *cost > Cost::ZERO).min().unwrap_or(Cost::ZERO)
    }

    /// The cost of a request to a normalized path. If the path has several readings, the highest
    /// cost counts.
    pub fn of(&self, method: &Method, path: &str) -> Cost {
        let method = method.as_str();
        if self.paths.is_empty() {
            return self.methods.of(method);
        }
        let readings = other_readings(path).map(|reading| self.of_reading(method, &reading));
        readings.fold(self.of_reading(method, path), Cost::max)
    }

    fn of_reading(&self, method: &str, path: &str) -> Cost {
        let is_met = |rule: &&CostRule| rule.methods.contain(method) && rule.path.matches(path);
        let rule = self.paths.iter().find(is_met);
        rule.map_or_else(|| self.methods.of(method), |rule| rule.cost)
    }

    /// The highest cost that these methods and paths can have, and a description of the requests
    /// that have it.
    pub fn highest(&self, methods: &Methods, path: &PathMatch) -> (Cost, String) {
        let is_met = |(index, rule): (usize, &CostRule)| {
            let meet = rule.path.covers(path) || path.covers(&rule.path);
            // Only the first match counts.
            let is_hidden = self.paths[..index].iter().any(|earlier| {
                (earlier.path.covers(path) || earlier.path.covers(&rule.path))
                    && (earlier.methods.cover(methods) || earlier.methods.cover(&rule.methods))
            });
            meet && rule.methods.meet(methods) && !is_hidden
        };
        let rules = self.paths.iter().enumerate().filter(|it| is_met(*it)).map(|(_, rule)| {
            let CostRule { methods, path, cost } = rule;
            let method = if methods.is_all() { String::new() } else { format!("{methods} ") };
            (*cost, format!("a {method}request to `{path}`"))
        });
        let has_rule = |has_methods: &dyn Fn(&Methods) -> bool| {
            self.paths.iter().any(|rule| rule.path.covers(path) && has_methods(&rule.methods))
        };
        let listed = self.methods.listed().map(|(method, _)| method);
        let listed = listed.filter(|it| methods.contain(it));
        let by_method = listed.chain(methods.iter()).filter(|it| !has_rule(&|all| all.contain(it)));
        let by_method =
            by_method.map(|method| (self.methods.of(method), format!("a {method} request")));
        let has_others = methods.is_all() && !has_rule(&Methods::is_all);
        let other =
            if self.methods.listed().next().is_none() { "a request" } else { "any other request" };
        let others = has_others.then(|| (self.methods.other(), other.to_owned()));
        let all = rules.chain(by_method).chain(others);
        all.reduce(|highest, next| if next.0 > highest.0 { next } else { highest })
            .unwrap_or_else(|| (self.methods.other(), other.to_owned()))
    }
}
