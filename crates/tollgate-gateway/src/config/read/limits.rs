use std::sync::Arc;

use tollgate::Policy;
use tollgate::policy::{Algorithm, Cost, OnStoreError};

use super::super::tables::{Api, Policy as PolicyKeys, Route};
use super::super::typed::{Checked, Item, Key, Mark, Spot};
use super::beside::{self, Leased, Struck};
use super::policy::{self, Section, is_bucket, is_queue, no_effect};
use super::quotas::{self, Client, Policies, Quotas};
use super::settling::{self, About};
use super::{Shared, costs, inherited, paths};
use crate::plan::{
    ApiPlan, CostTable, LimitPlan, Methods, PathMatch, PenaltyPlan, RouteLimits, Whose,
};

pub(super) struct Limits {
    pub(super) limits: RouteLimits,
    costs: Option<Arc<CostTable>>,
    /// The quota of `client` and then that of each tier, for limits that are a share.
    client: Option<Client>,
}

pub(super) fn limits(shared: &Shared<'_>) -> Limits {
    let limiter = shared.limiter;
    let costs = costs::costs(&limiter.costs, None).ok();
    let mut limits = Limits { limits: RouteLimits::default(), costs, client: None };
    if limiter.tiers.is_set() && !limiter.client.is_set() {
        limiter.tiers.name().error(
            "`tiers` needs `client`, the quota of clients without a tier",
            "add a section `client` with `limit` and `windowSeconds`",
        );
    }
    let keys = Keys { global: &limiter.global, client: &limiter.client, apis: &limiter.apis };
    let (own, client) = own(keys, "", &PathMatch::Any, &limits, shared);
    if limiter.tiers.is_set() && own.client.as_ref().is_some_and(|client| client.policy.is_none()) {
        limiter.tiers.name().error(
            "`tiers` needs `client.limit`, the quota of clients without a tier",
            "add `limit` and `windowSeconds` to `client`",
        );
    }
    limits.limits = own;
    limits.client = client;
    limits
}

/// The limits of a route: its own, and for the rest those of `rateLimiter`.
pub(super) fn of_route(
    route: &Route,
    name: &str,
    path: &PathMatch,
    outer: &Limits,
    shared: &Shared<'_>,
) -> RouteLimits {
    let keys = Keys { global: &route.global, client: &route.client, apis: &route.apis };
    let (own, _) = own(keys, &format!("{name}/"), path, outer, shared);
    let outer = &outer.limits;
    RouteLimits {
        global: if route.global.is_set() { own.global } else { outer.global.clone() },
        client: if route.client.is_set() { own.client } else { outer.client.clone() },
        apis: if route.apis.is_set() { own.apis } else { Arc::clone(&outer.apis) },
    }
}

#[derive(Clone, Copy)]
struct Keys<'a> {
    global: &'a Key<Option<Box<PolicyKeys>>>,
    client: &'a Key<Option<Box<PolicyKeys>>>,
    apis: &'a Key<Option<Vec<Item<Api>>>>,
}

fn own(
    keys: Keys<'_>,
    prefix: &str,
    path: &PathMatch,
    outer: &Limits,
    shared: &Shared<'_>,
) -> (RouteLimits, Option<Client>) {
    let maker = Maker { path, outer, shared };
    let one = |key: &Key<Option<Box<PolicyKeys>>>, whose| {
        let default = format!("{prefix}{}", key.key);
        maker.everywhere(key.there()?, &default, whose).ok()
    };
    let global = one(keys.global, Whose::Everybody);
    let (client, quotas) = one(keys.client, Whose::Client).unzip();
    let quotas = quotas.flatten();
    // A share is one of the nearest `client`.
    let quotas = quotas.or_else(|| outer.client.clone());
    let apis = apis(keys.apis, &maker, quotas.as_ref());
    let global = global.map(|(limit, _)| Arc::new(limit));
    (RouteLimits { global, client: client.map(Arc::new), apis }, quotas)
}

struct Maker<'a, 'b> {
    /// The paths of the route.
    path: &'b PathMatch,
    outer: &'b Limits,
    shared: &'b Shared<'a>,
}

impl Maker<'_, '_> {
    fn everywhere(
        &self,
        keys: &PolicyKeys,
        default: &str,
        whose: Whose,
    ) -> Checked<(LimitPlan, Option<Client>)> {
        let section = keys.section();
        let name = keys.identifier.there().map_or(default, |name| name);
        self.shared.names.take(name, &keys.identifier.spot());
        if !quotas::is_in(section) {
            let kind = LimitKind { name: Ok(name), whose, algorithm: None };
            let rest = self.rest(section, kind)?;
            return Ok((rest.limit(None)?, None));
        }
        let algorithm = policy::algorithm_everywhere(section, self.shared);
        let also = &section.rules.also;
        let everybody =
            algorithm.and_then(|algorithm| quotas::of_section(section.quota(), also, algorithm));
        let kind = LimitKind { name: Ok(name), whose, algorithm: algorithm.ok() };
        let rest = self.rest(section, kind);
        let algorithm = algorithm?;
        let tiers = match whose {
            Whose::Client => quotas::of_tiers(self.shared.limiter, algorithm),
            Whose::Everybody => Ok(Vec::new()),
        };
        let quotas = Quotas { everybody: everybody?, tiers: tiers? };
        let policies = quotas.policies(name, algorithm, None, &self.shared.names);
        let limit = rest?.limit(Some(policies?))?;
        self.check_costs(&limit, section, &Methods::default(), self.path);
        Ok((limit, Some(quotas.client())))
    }

    fn rest(
        &self,
        section: Section<'_>,
        LimitKind { name, whose, algorithm }: LimitKind<'_>,
    ) -> Checked<Rest> {
        let rules = section.rules;
        if rules.expire_seconds.is_set() {
            let why = "what is kept of a client expires by itself";
            no_effect(&rules.expire_seconds, "here", why);
        }
        let costs = costs::costs(&rules.costs, self.outer.costs.as_ref());
        let on_store_error = policy::on_store_error(rules, self.shared);
        let shed = policy::shed(rules, self.shared);
        let enforce = !inherited(&rules.shadow, &self.shared.limiter.shadow)?;
        let (on_store_error, shed) = (on_store_error?, shed?);
        let can_fail = self.shared.can_fail;
        let about = About { algorithm, on_store_error, enforce, can_fail };
        let excess = settling::excess(rules, about);
        let counts = settling::counts(rules, about);
        let reserve = settling::reserve(rules, about);
        let lease = beside::lease(rules, can_fail);
        let (excess, counts) = (excess?, counts?);
        let struck = Struck { whose, enforce, excess, counts: counts.as_ref() };
        let in_flight = beside::in_flight(rules, name?, &self.shared.names);
        let penalty = beside::penalty(rules, name?, &struck, &self.shared.names);
        let estimate = rules.reserve.there().map(|reserve| reserve.units.value()).transpose()?;
        let costs = match estimate.flatten() {
            Some(units) => Arc::new(CostTable::flat(Cost::new(units))),
            None => costs?,
        };
        let limit = LimitPlan {
            name: name?.to_owned(),
            policy: None,
            tiers: Vec::new(),
            also: Vec::new(),
            whose,
            costs,
            enforce,
            hide_headers: rules.hide_headers.value()?,
            excess,
            counts,
            reserve: reserve?,
            in_flight: in_flight?,
            penalty: penalty?,
        };
        Ok(Rest { limit, on_store_error, shed, lease: lease? })
    }

    /// A request that costs more than the capacity would always be denied.
    fn check_costs(
        &self,
        limit: &LimitPlan,
        section: Section<'_>,
        methods: &Methods,
        path: &PathMatch,
    ) {
        let (cost, request) = limit.costs.highest(methods, path);
        let cost = cost.get();
        let tiers = self.shared.limiter.tiers.there().map(|tiers| &tiers.quotas.all[..]);
        let names = tiers.unwrap_or_default().iter().map(|(name, _)| name);
        let tiers =
            names.enumerate().map(|(tier, name)| (Some(tier), format!(" in tier `{name}`")));
        let low = std::iter::once((None, String::new())).chain(tiers).find_map(|(tier, name)| {
            let policy = limit.quotas_in(tier).find(|policy| policy.capacity() < cost)?;
            Some((policy, name))
        });
        let Some((policy, tier)) = low else { return };
        let spot = section.capacity().map_or_else(|| (*section.here.spot).clone(), Mark::spot);
        let key = if policy.algorithm().is_some_and(is_bucket) { "burst" } else { "limit" };
        spot.error(
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

struct LimitKind<'a> {
    name: Checked<&'a str>,
    whose: Whose,
    algorithm: Option<Algorithm>,
}

struct Rest {
    limit: LimitPlan,
    on_store_error: OnStoreError,
    shed: Option<OnStoreError>,
    lease: Option<Leased>,
}

impl Rest {
    /// The limit with these policies, if it has a quota.
    fn limit(self, policies: Option<Policies>) -> Checked<LimitPlan> {
        let Self { mut limit, on_store_error, shed, lease } = self;
        let fails = |policy: Policy| {
            let policy = policy.with_on_store_error(on_store_error);
            shed.into_iter().fold(policy, Policy::with_shed)
        };
        let whole = |policy: Policy| match &lease {
            Some(lease) => lease.of(fails(policy)),
            None => Ok(fails(policy)),
        };
        limit.in_flight = limit.in_flight.map(fails);
        limit.penalty =
            limit.penalty.map(|it| PenaltyPlan { policy: fails(it.policy), failures: it.failures });
        let Some(Policies { first, tiers, mut also }) = policies else {
            // A request in flight counts once, whatever it costs.
            limit.costs = Arc::new(CostTable::flat(Cost::ONE));
            limit.counts = None;
            limit.reserve = None;
            return Ok(limit);
        };
        limit.policy = Some(whole(first)?);
        let tiers = tiers.into_iter().map(|policy| policy.map(whole).transpose());
        limit.tiers = tiers.collect::<Checked<_>>()?;
        for quota in &mut also {
            for policy in quota.everybody.iter_mut().chain(quota.tiers.iter_mut().flatten()) {
                *policy = whole(policy.clone())?;
            }
        }
        limit.also = also;
        Ok(limit)
    }
}

fn apis(
    apis: &Key<Option<Vec<Item<Api>>>>,
    maker: &Maker<'_, '_>,
    client: Option<&Client>,
) -> Arc<[ApiPlan]> {
    let mut found: Vec<(ApiPlan, Spot)> = Vec::new();
    for keys in apis.items().unwrap_or_default().iter().flat_map(Item::get) {
        if let Ok(api) = api(keys, maker, client) {
            found.push((api, keys.path.spot()));
        }
    }
    warn_of_shadowed(&found);
    found.into_iter().map(|(api, _)| api).collect()
}

fn api(keys: &Api, maker: &Maker<'_, '_>, client: Option<&Client>) -> Checked<ApiPlan> {
    let section = keys.section();
    let name = keys.identifier.get().map(String::as_str);
    if let Ok(name) = name {
        maker.shared.names.take(name, &keys.identifier.spot());
    }
    let path = keys.path.get();
    let path = path.and_then(|path| paths::path(path, &keys.path.spot()));
    let methods = paths::methods(&keys.method);
    let whose = keys.per.value()?;
    if !keys.share.is_set() && !quotas::is_in(section) {
        let kind = LimitKind { name, whose, algorithm: None };
        let rest = maker.rest(section, kind);
        let limit = rest?.limit(None)?;
        return Ok(ApiPlan { methods: methods?, path: path?, limit });
    }
    let algorithm = policy::algorithm(section.rules, maker.shared);
    let kind = LimitKind { name, whose, algorithm: algorithm.ok() };
    let rest = maker.rest(section, kind);
    let quotas = algorithm.and_then(|algorithm| quotas(keys, algorithm, client));
    let (algorithm, mut quotas, name) = (algorithm?, quotas?, name?);
    if whose == Whose::Everybody {
        // A quota that all clients share has no tiers.
        quotas.tiers.clear();
    }
    let policies = quotas.policies(name, algorithm, keys.share.value()?, &maker.shared.names)?;
    let limit = rest?.limit(Some(policies))?;
    let (methods, path) = (methods?, path?);
    // The limit is about the paths of both the api and the route.
    let narrower = if path.covers(maker.path) { maker.path } else { &path };
    maker.check_costs(&limit, section, &methods, narrower);
    Ok(ApiPlan { methods, path, limit })
}

/// The quotas of an api. For a share of the client's quota, these are the whole quotas of the
/// client and of each tier.
fn quotas<'a>(keys: &'a Api, algorithm: Algorithm, client: Option<&Client>) -> Checked<Quotas<'a>> {
    let section = keys.section();
    if !keys.share.is_set() {
        let also = &section.rules.also;
        let everybody = quotas::of_section(section.quota(), also, algorithm)?;
        return Ok(Quotas { everybody, tiers: Vec::new() });
    }
    let Some(client) = client else {
        return Err(keys.share.name().error(
            "`client` has no quota of which this could be a share",
            "write a section `client` with a `limit`, or `limit` and `windowSeconds` here",
        ));
    };
    if let Some(quota) = client.quotas().find(|quota| quota.calendar().is_some())
        && algorithm != Algorithm::FixedWindowCounter
    {
        return Err(keys.share.error(
            format!(
                "this is a part of a quota per {}, which a {algorithm} cannot count",
                quota.span()
            ),
            "write `strategy: fixed_window_counter`, or `limit` and `windowSeconds`",
        ));
    }
    let quotas = Quotas::of_client(client, section.quota(), algorithm);
    if quotas.are_several() && is_queue(algorithm) {
        return Err(keys.share.name().error(
            "a queue has one rate, and `client` has several quotas at the same time",
            "write `mode: meter`, another `strategy`, or a `limit` in place of the share",
        ));
    }
    Ok(quotas)
}

fn warn_of_shadowed(apis: &[(ApiPlan, Spot)]) {
    let mut comparisons = 0;
    for (index, (api, spot)) in apis.iter().enumerate() {
        // Thousands of expressions against thousands of paths would take minutes.
        comparisons += index;
        if comparisons > MOST_COMPARISONS {
            return;
        }
        let earlier = apis[..index].iter().find(|(earlier, _)| {
            earlier.methods.cover(&api.methods) && earlier.path.covers(&api.path)
        });
        if let Some((earlier, _)) = earlier {
            spot.warn(
                format!(
                    "this is never reached: `{}` before it takes every such request",
                    earlier.limit.name
                ),
                if api.path == PathMatch::Any || earlier.path == api.path {
                    "only the first that matches counts: remove one of them"
                } else {
                    "only the first that matches counts: move the narrower one up"
                },
            );
        }
    }
}

/// Some seconds at the most.
const MOST_COMPARISONS: usize = 1_000_000;
