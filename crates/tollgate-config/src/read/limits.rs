use std::sync::Arc;

use tollgate::Policy;
use tollgate::policy::{Algorithm, Cost, OnStoreError};

use super::super::problem::Checked;
use super::super::tables::{Api, Policy as PolicyKeys, Route};
use super::super::typed::{Item, Key, Location, Setting};
use super::context::{FileContext, inherited, is_bucket, is_queue};
use super::options::{self, LeaseOption, PenaltyTarget};
use super::policy::{self, Section};
use super::quotas::{self, QUOTA_KEYS, Quotas};
use super::settling::{self, PolicyContext};
use super::{costs, llm, paths};
use crate::plan::{
    ApiPlan, CostTable, LimitPlan, Methods, PathMatch, PenaltyPlan, QuotaPlan, RouteLimits, Whose,
};

pub(super) struct Limits<'a> {
    pub(super) limits: RouteLimits,
    costs: Option<Arc<CostTable>>,
    /// The quotas of `client` and its tiers, for limits with a share.
    client: Option<Quotas<'a>>,
}

pub(super) fn limits<'a>(file: &FileContext<'a>) -> Limits<'a> {
    let limiter = file.limiter;
    let costs = costs::costs(&limiter.costs, None).ok();
    let mut limits = Limits { limits: RouteLimits::default(), costs, client: None };
    if limiter.tiers.is_set() && !limiter.client.is_set() {
        limiter.tiers.name().error(
            "`tiers` needs `client`, the quota of clients without a tier",
            format!("add a section `client` with {QUOTA_KEYS}"),
        );
    }
    let keys = Keys { global: &limiter.global, client: &limiter.client, apis: &limiter.apis };
    let (own, client) = own(keys, "", &PathMatch::Any, &limits, file);
    if limiter.tiers.is_set() && own.client.as_ref().is_some_and(|client| client.quotas.is_empty())
    {
        limiter.tiers.name().error(
            "`tiers` needs `client.limit`, the quota of clients without a tier",
            format!("add {QUOTA_KEYS} to `client`"),
        );
    }
    limits.limits = own;
    limits.client = client;
    if let Ok(Some(llm)) = llm::api(file) {
        limits.limits.apis = std::iter::once(&llm).chain(&*limits.limits.apis).cloned().collect();
    }
    limits
}

/// A route's own limits, completed with the limits in `rateLimiter`.
pub(super) fn of_route<'a>(
    route: &'a Route,
    name: &str,
    path: &PathMatch,
    outer: &Limits<'a>,
    file: &FileContext<'a>,
) -> RouteLimits {
    let keys = Keys { global: &route.global, client: &route.client, apis: &route.apis };
    let (own, _) = own(keys, &format!("{name}/"), path, outer, file);
    let outer = &outer.limits;
    RouteLimits {
        global: if route.global.is_set() { own.global } else { outer.global.clone() },
        client: if route.client.is_set() { own.client } else { outer.client.clone() },
        apis: if route.apis.is_set() {
            let llm = outer.apis.iter().filter(|api| api.llm.is_some());
            llm.chain(&*own.apis).cloned().collect()
        } else {
            Arc::clone(&outer.apis)
        },
    }
}

#[derive(Clone, Copy)]
struct Keys<'a> {
    global: &'a Key<Option<Box<PolicyKeys>>>,
    client: &'a Key<Option<Box<PolicyKeys>>>,
    apis: &'a Key<Option<Vec<Item<Api>>>>,
}

fn own<'a>(
    keys: Keys<'a>,
    prefix: &str,
    path: &PathMatch,
    outer: &Limits<'a>,
    file: &FileContext<'a>,
) -> (RouteLimits, Option<Quotas<'a>>) {
    let reader = LimitReader { path, outer, file };
    let one = |key: &'a Key<Option<Box<PolicyKeys>>>, whose| {
        let default = format!("{prefix}{}", key.key);
        reader.everywhere(key.there()?, &default, whose).ok()
    };
    let global = one(keys.global, Whose::Everybody);
    let (client, quotas) = one(keys.client, Whose::Client).unzip();
    let quotas = quotas.flatten();
    // A share refers to the nearest `client`.
    let quotas = quotas.or_else(|| outer.client.clone());
    let apis = apis(keys.apis, &reader, quotas.as_ref());
    let global = global.map(|(limit, _)| Arc::new(limit));
    (RouteLimits { global, client: client.map(Arc::new), apis }, quotas)
}

struct LimitReader<'a, 'b> {
    /// The route's paths.
    path: &'b PathMatch,
    outer: &'b Limits<'a>,
    file: &'b FileContext<'a>,
}

impl<'a> LimitReader<'a, '_> {
    fn everywhere(
        &self,
        keys: &'a PolicyKeys,
        default: &str,
        whose: Whose,
    ) -> Checked<(LimitPlan, Option<Quotas<'a>>)> {
        let section = keys.section();
        let name = keys.identifier.there().map_or(default, |name| name);
        self.file.names.take(name, &keys.identifier.location());
        if !quotas::is_in(section) {
            let kind = LimitKind { name: Ok(name), whose, algorithm: None };
            let options = self.options(section, kind)?;
            return Ok((options.limit(Vec::new())?, None));
        }
        let algorithm = policy::algorithm_everywhere(section, self.file);
        let also = &section.rules.also;
        let everybody =
            algorithm.and_then(|algorithm| quotas::of_section(section.quota(), also, algorithm));
        let kind = LimitKind { name: Ok(name), whose, algorithm: algorithm.ok() };
        let options = self.options(section, kind);
        let algorithm = algorithm?;
        let tiers = match whose {
            Whose::Client => quotas::of_tiers(self.file.limiter, algorithm),
            Whose::Everybody => Ok(Vec::new()),
        };
        let quotas = Quotas { everybody: everybody?, tiers: tiers? };
        let plans = quotas.plans(name, algorithm, None, &self.file.names);
        let limit = options?.limit(plans?)?;
        self.check_costs(&limit, section, &Methods::default(), self.path);
        Ok((limit, Some(quotas)))
    }

    fn options(
        &self,
        section: Section<'_>,
        LimitKind { name, whose, algorithm }: LimitKind<'_>,
    ) -> Checked<LimitOptions> {
        let rules = section.rules;
        rules.expire_seconds.no_effect("here", "client state expires automatically");
        let costs = costs::costs(&rules.costs, self.outer.costs.as_ref());
        let on_store_error = policy::on_store_error(rules, self.file);
        let shed = policy::shed(rules, self.file);
        let enforce = !inherited(&rules.shadow, &self.file.limiter.shadow)?;
        let (on_store_error, shed) = (on_store_error?, shed?);
        let can_fail = self.file.can_fail;
        let context = PolicyContext { algorithm, on_store_error, enforce, can_fail };
        let excess = settling::excess(rules, context);
        let counts = settling::counts(rules, context);
        let reserve = settling::reserve(rules, context);
        let lease = options::lease(rules, can_fail);
        let (excess, counts) = (excess?, counts?);
        let target = PenaltyTarget { whose, enforce, excess, counts: counts.as_ref() };
        let in_flight = options::in_flight(&rules.concurrency, name?, &self.file.names);
        let penalty = options::penalty(rules, name?, &target, &self.file.names);
        let estimate = rules.reserve.there().map(|reserve| reserve.units.value()).transpose()?;
        let costs = match estimate.flatten() {
            Some(units) => Arc::new(CostTable::flat(Cost::new(units))),
            None => costs?,
        };
        let limit = LimitPlan {
            name: name?.to_owned(),
            quotas: Vec::new(),
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
        Ok(LimitOptions { limit, on_store_error, shed, lease: lease? })
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
        let tiers = self.file.limiter.tiers.there().map(|tiers| &tiers.quotas.all[..]);
        let names = tiers.unwrap_or_default().iter().map(|(name, _)| name);
        let tiers =
            names.enumerate().map(|(tier, name)| (Some(tier), format!(" in tier `{name}`")));
        let low = std::iter::once((None, String::new())).chain(tiers).find_map(|(tier, name)| {
            let policy = limit.quotas_in(tier).find(|policy| policy.capacity() < cost)?;
            Some((policy, name))
        });
        let Some((policy, tier)) = low else { return };
        let location =
            section.capacity().map_or_else(|| (*section.info.location).clone(), Setting::location);
        let key = if policy.algorithm().is_some_and(is_bucket) { "burst" } else { "limit" };
        location.error(
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

struct LimitOptions {
    limit: LimitPlan,
    on_store_error: OnStoreError,
    shed: Option<OnStoreError>,
    lease: Option<LeaseOption>,
}

impl LimitOptions {
    /// The limit with these quotas.
    fn limit(self, mut quotas: Vec<QuotaPlan>) -> Checked<LimitPlan> {
        let Self { mut limit, on_store_error, shed, lease } = self;
        let with_failures = |policy: Policy| {
            let policy = policy.with_on_store_error(on_store_error);
            shed.into_iter().fold(policy, Policy::with_shed)
        };
        limit.in_flight = limit.in_flight.map(with_failures);
        limit.penalty = limit.penalty.map(|PenaltyPlan { policy, failures }| PenaltyPlan {
            policy: with_failures(policy),
            failures,
        });
        if quotas.is_empty() {
            // A concurrency limit counts requests, not their cost.
            limit.costs = Arc::new(CostTable::flat(Cost::ONE));
            limit.counts = None;
            limit.reserve = None;
        }
        for quota in &mut quotas {
            for policy in quota.everybody.iter_mut().chain(quota.tiers.iter_mut().flatten()) {
                let failing = with_failures(policy.clone());
                *policy = match &lease {
                    Some(lease) => lease.of(failing)?,
                    None => failing,
                };
            }
        }
        limit.quotas = quotas;
        Ok(limit)
    }
}

fn apis<'a>(
    apis: &'a Key<Option<Vec<Item<Api>>>>,
    reader: &LimitReader<'a, '_>,
    client: Option<&Quotas<'a>>,
) -> Arc<[ApiPlan]> {
    let mut found: Vec<(ApiPlan, Location)> = Vec::new();
    for keys in apis.items().unwrap_or_default().iter().flat_map(Item::get) {
        if let Ok(api) = api(keys, reader, client) {
            found.push((api, keys.path.location()));
        }
    }
    warn_of_shadowed(&found);
    found.into_iter().map(|(api, _)| api).collect()
}

fn api<'a>(
    keys: &'a Api,
    reader: &LimitReader<'a, '_>,
    client: Option<&Quotas<'a>>,
) -> Checked<ApiPlan> {
    let section = keys.section();
    let name = keys.identifier.get().map(String::as_str);
    if let Ok(name) = name {
        reader.file.names.take(name, &keys.identifier.location());
    }
    let path = keys.path.get();
    let path = path.and_then(|path| paths::path(path, &keys.path.location()));
    let methods = paths::methods(&keys.method);
    let whose = keys.per.value()?;
    if !keys.share.is_set() && !quotas::is_in(section) {
        let kind = LimitKind { name, whose, algorithm: None };
        let options = reader.options(section, kind);
        let limit = options?.limit(Vec::new())?;
        return Ok(ApiPlan { methods: methods?, path: path?, limit, llm: None });
    }
    let algorithm = policy::algorithm(section.rules, reader.file);
    let kind = LimitKind { name, whose, algorithm: algorithm.ok() };
    let options = reader.options(section, kind);
    let quotas = algorithm.and_then(|algorithm| quotas(keys, algorithm, client));
    let (algorithm, mut quotas, name) = (algorithm?, quotas?, name?);
    if whose == Whose::Everybody {
        // A quota that all clients share has no tiers.
        quotas.tiers.clear();
    }
    let plans = quotas.plans(name, algorithm, keys.share.value()?, &reader.file.names)?;
    let limit = options?.limit(plans)?;
    let (methods, path) = (methods?, path?);
    // The limit applies to paths that match both the api and the route.
    let narrower = if path.covers(reader.path) { reader.path } else { &path };
    reader.check_costs(&limit, section, &methods, narrower);
    Ok(ApiPlan { methods, path, limit, llm: None })
}

/// An api's quotas. For a share, these are the full quotas of `client` and its tiers.
fn quotas<'a>(
    keys: &'a Api,
    algorithm: Algorithm,
    client: Option<&Quotas<'a>>,
) -> Checked<Quotas<'a>> {
    let section = keys.section();
    if !keys.share.is_set() {
        let also = &section.rules.also;
        let everybody = quotas::of_section(section.quota(), also, algorithm)?;
        return Ok(Quotas { everybody, tiers: Vec::new() });
    }
    let Some(client) = client else {
        return Err(keys.share.name().error(
            "`client` has no quota that this could be a share of",
            format!("write a section `client` with a `limit`, or {QUOTA_KEYS} here"),
        ));
    };
    if let Some(quota) = client.all().find(|quota| quota.calendar().is_some())
        && algorithm != Algorithm::FixedWindowCounter
    {
        return Err(keys.share.error(
            format!(
                "this is a part of a quota per {}, which a {algorithm} cannot count",
                quota.span()
            ),
            format!("write `strategy: fixed_window_counter`, or {QUOTA_KEYS}"),
        ));
    }
    let quotas = client.shared_by(section.quota(), algorithm);
    if quotas.are_several() && is_queue(algorithm) {
        return Err(keys.share.name().error(
            "a queue has one rate, and `client` has several quotas at the same time",
            "write `mode: meter`, another `strategy`, or a `limit` instead of the share",
        ));
    }
    Ok(quotas)
}

fn warn_of_shadowed(apis: &[(ApiPlan, Location)]) {
    let mut comparisons = 0;
    for (index, (api, location)) in apis.iter().enumerate() {
        // Comparing thousands of expressions with thousands of paths would take minutes.
        comparisons += index;
        if comparisons > MOST_COMPARISONS {
            return;
        }
        let earlier = apis[..index].iter().find(|(earlier, _)| {
            earlier.methods.cover(&api.methods) && earlier.path.covers(&api.path)
        });
        if let Some((earlier, _)) = earlier {
            location.warn(
                format!(
                    "this is never reached: `{}` before it matches every such request",
                    earlier.limit.name
                ),
                if api.path == PathMatch::Any || earlier.path == api.path {
                    "only the first match counts: remove either"
                } else {
                    "only the first match counts: move the narrower path up"
                },
            );
        }
    }
}

/// Takes a few seconds at most.
const MOST_COMPARISONS: usize = 1_000_000;
