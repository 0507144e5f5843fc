//! Requests that are counted together.

use std::rc::Rc;
use std::sync::Arc;

use tollgate::Policy;
use tollgate::key::{Key, Subject, SubjectKind};
use tollgate::store::Micros;
use tollgate_config::plan::{
    ApiPlan, ChargePlan, LimitPlan, Plan, QuotaPlan, RouteLimits, TenantNumbers, TenantQuota, Whose,
};
use tollgate_engine::Limits;
use tollgate_replay::worst::{Kind, Threat, bound};

use super::tenants::{Source, Tenants};

/// Requests that are counted together.
pub(super) struct Group<'a> {
    pub(super) name: String,
    /// The tenant with these numbers, if they are not the configured ones.
    pub(super) tenant: Option<String>,
    pub(super) kinds: Vec<Kind>,
    /// Requests of the group that no limit bounds.
    pub(super) unlimited: Vec<String>,
    /// Where the numbers come from.
    pub(super) notes: Vec<String>,
    /// Clients that may have the largest numbers. A file may contain many tenants, so a candidate
    /// exists only while it is compared.
    candidates: Candidates<'a>,
    /// The file with the candidates' numbers.
    file: Option<String>,
}

/// Starts with the configured numbers.
type Candidates<'a> = Box<dyn Fn() -> Box<dyn Iterator<Item = Candidate> + 'a> + 'a>;

struct Candidate {
    /// `None` for clients with the configured numbers.
    tenant: Option<String>,
    kinds: Vec<Kind>,
    unlimited: Vec<String>,
}

impl Candidate {
    fn bound(&self, window: Micros, threat: &Threat) -> u64 {
        let is_unlimited = self.kinds.is_empty();
        let bound = (!is_unlimited).then(|| bound(&self.kinds, window, threat)).flatten();
        bound.unwrap_or(u64::MAX)
    }
}

impl<'a> Group<'a> {
    fn new(name: String, candidates: Candidates<'a>, source: Option<&Source>) -> Self {
        let mut group = Self {
            name,
            tenant: None,
            kinds: Vec::new(),
            unlimited: Vec::new(),
            notes: Vec::new(),
            candidates,
            file: None,
        };
        match source {
            Some(Source { name, table: None, .. }) => group.notes.push(format!(
                "with the configured numbers: {name} is not asked, and its tenants may have larger ones"
            )),
            Some(Source { name, table: Some(_), .. }) => group.file = Some(name.clone()),
            None => {}
        }
        group.unlimited.extend(source.and_then(Source::unlimited));
        group
    }

    /// Its policies' longest window.
    pub(super) fn window(&self) -> Micros {
        let window = |candidate: Candidate| {
            candidate.kinds.iter().flat_map(Kind::policies).map(Policy::window).max()
        };
        (self.candidates)().filter_map(window).max().unwrap_or_default()
    }

    /// Selects the client with the largest bound in this window, such as a tenant.
    pub(super) fn choose(&mut self, window: Micros, threat: &Threat) {
        let mut chosen: Option<(u64, Candidate)> = None;
        for candidate in (self.candidates)() {
            let bound = candidate.bound(window, threat);
            // Of equal bounds the first counts.
            if chosen.as_ref().is_none_or(|(largest, _)| bound > *largest) {
                chosen = Some((bound, candidate));
            }
        }
        let Some((_, chosen)) = chosen else { return };
        self.notes.extend(self.file.take().map(|file| match &chosen.tenant {
            Some(tenant) => {
                format!("the tenant `{}` has the largest numbers in {file}", tenant.escape_debug())
            }
            None => format!("no tenant in {file} has larger numbers"),
        }));
        self.unlimited.splice(0..0, chosen.unlimited);
        (self.tenant, self.kinds) = (chosen.tenant, chosen.kinds);
    }
}

/// Each policy alone, a single client's requests, and all clients' requests.
pub(super) fn groups<'a>(plan: &'a Plan, tenants: &'a Tenants) -> Vec<Group<'a>> {
    let mut groups = alone(plan, tenants);
    groups.extend(tiers(plan).map(|tier| client(plan, tenants, tier)));
    let everybody = |limit: &LimitPlan| limit.whose == Whose::Everybody;
    groups.push(together(plan, "all clients together".to_owned(), None, None, everybody));
    groups
}

/// No tier, and each tier.
fn tiers(plan: &Plan) -> impl Iterator<Item = Option<usize>> + use<> {
    [None].into_iter().chain((0..plan.tiers.len()).map(Some))
}

fn in_tier(plan: &Plan, tier: Option<usize>) -> String {
    tier.map(|tier| format!(" in tier {}", plan.tiers[tier])).unwrap_or_default()
}

/// A client's requests.
pub(super) fn client<'a>(plan: &'a Plan, tenants: &'a Tenants, tier: Option<usize>) -> Group<'a> {
    let name = format!("one client{}, all its requests", in_tier(plan, tier));
    // A tenant's numbers replace its tier's.
    let source = tenants.of_clients().filter(|_| tier.is_none());
    together(plan, name, tier, source, |_| true)
}

/// Each enforced policy alone, in each tier.
pub(super) fn alone<'a>(plan: &'a Plan, tenants: &'a Tenants) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for limit in plan.routes.iter().flat_map(|route| route.limits.all()) {
        let source = tenants.of(limit);
        for quota in &limit.quotas {
            // Without an own quota in any tier, the list is empty.
            for tier in tiers(plan).take(1 + quota.tiers.len()) {
                let source = source.filter(|_| tier.is_none());
                let policies = move || policies(limit, quota, tier, source);
                let Some((_, policy)) = policies().next() else { continue };
                let name = format!("{}{}", policy.name(), in_tier(plan, tier));
                // Routes share the limits that they inherit.
                if groups.iter().any(|group| group.name == name) {
                    continue;
                }
                let unlimited = match limit.enforces() {
                    false => vec!["it is not enforced".to_owned()],
                    true if refunds(limit) => vec!["requests with a refund".to_owned()],
                    true => Vec::new(),
                };
                let candidates = move || {
                    let unlimited = unlimited.clone();
                    let candidate = move |(tenant, policy): (Option<String>, Policy)| {
                        let kinds = limit.enforces().then(|| Kind::of_policy(&policy));
                        let kinds = kinds.into_iter().collect();
                        Candidate { tenant, kinds, unlimited: unlimited.clone() }
                    };
                    Box::new(policies().map(candidate)) as Box<dyn Iterator<Item = Candidate> + 'a>
                };
                let candidates = Box::new(candidates);
                groups.push(Group::new(name, candidates, source));
            }
        }
    }
    groups
}

/// The quota's policies: in this tier, and for each tenant.
fn policies<'a>(
    limit: &'a LimitPlan,
    quota: &'a QuotaPlan,
    tier: Option<usize>,
    source: Option<&'a Source>,
) -> impl Iterator<Item = (Option<String>, Policy)> + 'a {
    let configured = quota.policy_in(tier).map(|policy| (None, policy.clone()));
    let own = source.into_iter().flat_map(Source::numbers).filter_map(move |(tenant, numbers)| {
        let policy = limit.tenant_policy(ChargePlan::Quota(quota), numbers)?;
        Some((Some(tenant.to_owned()), policy))
    });
    configured.into_iter().chain(own)
}

/// A client's requests, or all clients' requests.
fn together<'a>(
    plan: &'a Plan,
    name: String,
    tier: Option<usize>,
    source: Option<&'a Source>,
    counts: impl Fn(&LimitPlan) -> bool + Copy + 'a,
) -> Group<'a> {
    let apis: Rc<[Api<'a>]> = apis(plan).collect();
    let candidates = move || {
        let apis = Rc::clone(&apis);
        let candidate = move |tenant: Option<(&str, &TenantQuota)>| {
            let numbers = |limit: &LimitPlan| match (tenant, source) {
                (Some((_, numbers)), Some(source)) if source.is_of(limit) => {
                    TenantNumbers::Known(numbers)
                }
                _ => TenantNumbers::Configured,
            };
            let (kinds, unlimited) = kinds(plan, &apis, tier, numbers, counts);
            Candidate { tenant: tenant.map(|(name, _)| name.to_owned()), kinds, unlimited }
        };
        let own = source.into_iter().flat_map(Source::numbers).map(Some);
        Box::new([None].into_iter().chain(own).map(candidate)) as Box<dyn Iterator<Item = _> + 'a>
    };
    Group::new(name, Box::new(candidates), source)
}

/// A route's requests that meet the same limits.
struct Api<'a> {
    /// For example `POST /login`.
    name: String,
    route: &'a RouteLimits,
    api: Option<usize>,
    limits: Arc<Limits>,
}

fn apis(plan: &Plan) -> impl Iterator<Item = Api<'_>> {
    plan.routes.iter().flat_map(|route| {
        let apis = (0..route.limits.apis.len()).map(Some).chain([None]);
        apis.map(|api| Api {
            name: described(&route.name, &route.limits, api),
            route: &route.limits,
            api,
            limits: Arc::new(route.limits.rules(api, plan.tiers.len())),
        })
    })
}

/// All requests together, which meet those limits that count, and the requests without a limit.
fn kinds<'t>(
    plan: &Plan,
    apis: &[Api<'_>],
    tier: Option<usize>,
    tenant: impl Fn(&LimitPlan) -> TenantNumbers<'t>,
    counts: impl Fn(&LimitPlan) -> bool,
) -> (Vec<Kind>, Vec<String>) {
    let (mut kinds, mut unlimited) = (Vec::new(), Vec::new());
    let subject = Subject { kind: SubjectKind::Ip, key: Key::from("client") };
    for Api { name, route, api, limits } in apis {
        let cost = |limit: &LimitPlan| {
            // Any number of requests may pass if their charges are refunded.
            (counts(limit) && !refunds(limit)).then(|| limit.costs.lowest())
        };
        // A client without a group is bounded the least.
        let subject = |whose: Whose| Ok((whose == Whose::Client).then_some(&subject));
        let charges = plan.charges(route, *api, limits, subject, tier, &tenant, cost);
        let (name, limits) = (name.clone(), Arc::clone(limits));
        let kind = Kind { name, limits, charges: charges.unwrap_or_default() };
        if kind.policies().next().is_some() {
            kinds.push(kind);
        } else {
            unlimited.push(format!("no limit bounds {}", kind.name));
        }
    }
    // Requests that meet fewer limits get as many through with a shorter schedule.
    kinds.sort_by_key(|kind| kind.policies().count());
    if kinds.is_empty() {
        unlimited = vec!["no limit applies to all of them together".to_owned()];
    }
    (kinds, unlimited)
}

/// Whether some responses refund or forgive the charge, or a part of it.
pub(crate) const fn refunds(limit: &LimitPlan) -> bool {
    limit.counts.is_some() || limit.forgives.is_some() || limit.reserve.is_some()
}

/// For example `POST /login`.
fn described(route: &str, limits: &RouteLimits, api: Option<usize>) -> String {
    match api.and_then(|api| limits.apis.get(api)) {
        Some(ApiPlan { methods, path, .. }) if methods.is_all() => path.to_string(),
        Some(ApiPlan { methods, path, .. }) => format!("{methods} {path}"),
        None if limits.apis.is_empty() => format!("route {route}"),
        None => format!("other paths of route {route}"),
    }
}
