//! The limits: for everybody, for each client, for some requests.

use std::sync::Arc;

use tollgate::policy::Algorithm;
use tollgate::{Cost, OnExceeded, OnStoreError, Policy};

use super::super::format;
use super::super::problem::Problems;
use super::super::view::{Item, View};
use super::beside::{self, Leased, Struck};
use super::policy::{self, Names, is_bucket, is_queue, no_effect};
use super::quotas::{self, Client, Policies, Quotas};
use super::settling::{self, About};
use super::{Shared, costs, paths};
use crate::plan::{
    ApiPlan, CostTable, LimitPlan, Methods, PathMatch, PenaltyPlan, ReservePlan, RouteLimits,
    Statuses, Whose,
};

/// The limits of `rateLimiter`, and what limits of routes are derived from.
pub(super) struct Limits {
    pub(super) limits: RouteLimits,
    costs: Option<Arc<CostTable>>,
    /// The quota of `client` and then that of each tier, for limits that are a share.
    client: Option<Client>,
}

/// The limits of `rateLimiter`.
pub(super) fn limits(shared: &Shared<'_>, names: &mut Names, problems: &mut Problems) -> Limits {
    let view = &shared.limiter;
    let costs = costs::costs(view, None, problems);
    let mut limits = Limits { limits: RouteLimits::default(), costs, client: None };
    if view.has("tiers") && !view.has("client") {
        problems.error(
            view.place_of_key("tiers"),
            "`tiers` needs `client`, the quota of those who are in no tier",
            "add a section `client` with `limit` and `windowSeconds`",
        );
    }
    let (own, client) = own(view, "", &limits, shared, names, problems);
    if view.has("tiers") && own.client.as_ref().is_some_and(|client| client.policy.is_none()) {
        problems.error(
            view.place_of_key("tiers"),
            "`tiers` needs `client.limit`, the quota of those who are in no tier",
            "add `limit` and `windowSeconds` to `client`",
        );
    }
    limits.limits = own;
    limits.client = client;
    limits
}

/// The limits of a route: its own, and for the rest those of `rateLimiter`.
pub(super) fn of_route(
    view: &View<'_>,
    name: &str,
    outer: &Limits,
    shared: &Shared<'_>,
    names: &mut Names,
    problems: &mut Problems,
) -> RouteLimits {
    let (own, _) = own(view, &format!("{name}/"), outer, shared, names, problems);
    let outer = &outer.limits;
    RouteLimits {
        global: if view.has("global") { own.global } else { outer.global.clone() },
        client: if view.has("client") { own.client } else { outer.client.clone() },
        apis: if view.has("apis") { own.apis } else { Arc::clone(&outer.apis) },
    }
}

fn own(
    view: &View<'_>,
    prefix: &str,
    outer: &Limits,
    shared: &Shared<'_>,
    names: &mut Names,
    problems: &mut Problems,
) -> (RouteLimits, Option<Client>) {
    let maker = Maker { outer, shared };
    let one = |key: &str, whose, names: &mut Names, problems: &mut Problems| {
        let view = view.view(key)?;
        let default = format!("{prefix}{key}");
        maker.everywhere(&view, &default, whose, names, problems)
    };
    let global = one("global", Whose::Everybody, names, problems);
    let client = one("client", Whose::Client, names, problems);
    let (client, quotas) = client.unzip();
    let quotas = quotas.flatten();
    // A share is one of the nearest `client`.
    let quotas = quotas.or_else(|| outer.client.clone());
    let apis = apis(view, &maker, quotas.as_ref(), names, problems);
    let global = global.map(|(limit, _)| Arc::new(limit));
    (RouteLimits { global, client: client.map(Arc::new), apis }, quotas)
}

/// Makes limits out of sections.
struct Maker<'a, 'b> {
    outer: &'b Limits,
    shared: &'b Shared<'a>,
}

impl Maker<'_, '_> {
    /// `global` or `client`.
    fn everywhere(
        &self,
        view: &View<'_>,
        default: &str,
        whose: Whose,
        names: &mut Names,
        problems: &mut Problems,
    ) -> Option<(LimitPlan, Option<Client>)> {
        let name = view.text("identifier").unwrap_or(default);
        names.take(name, view.place_of("identifier"), problems);
        let (any, path) = (Methods::default(), Some(&PathMatch::Any));
        if !quotas::is_in(view, problems) {
            let kind = Kind { name: Some(name), whose, algorithm: None };
            let rest = self.rest(view, kind, &any, path, names, problems)?;
            return Some((rest.limit(name, None, problems)?, None));
        }
        let algorithm = policy::algorithm_everywhere(view, self.shared, problems);
        let everybody =
            algorithm.and_then(|algorithm| quotas::of_section(view, algorithm, problems));
        let kind = Kind { name: Some(name), whose, algorithm };
        let rest = self.rest(view, kind, &any, path, names, problems);
        let algorithm = algorithm?;
        let tiers = match whose {
            Whose::Client => quotas::of_tiers(&self.shared.limiter, algorithm, problems),
            Whose::Everybody => Some(Vec::new()),
        };
        let quotas = Quotas { everybody: everybody?, tiers: tiers? };
        let policies = quotas.policies(name, algorithm, None, names, problems);
        let limit = rest?.limit(name, Some(policies?), problems)?;
        warn_of_dear_requests(&limit, view, problems);
        Some((limit, Some(quotas.client())))
    }

    /// What a limit has besides its policy.
    fn rest(
        &self,
        view: &View<'_>,
        Kind { name, whose, algorithm }: Kind<'_>,
        methods: &Methods,
        path: Option<&PathMatch>,
        names: &mut Names,
        problems: &mut Problems,
    ) -> Option<Rest> {
        if view.has("expireSeconds") {
            let why = "what is kept of a client expires by itself";
            no_effect(view, "expireSeconds", "here", why, problems);
        }
        let costs = costs::costs(view, self.outer.costs.as_ref(), problems);
        let on_store_error = policy::on_store_error(view, self.shared, problems);
        let shed = policy::shed(view, self.shared, problems);
        let shadow = if view.has("shadow") { view } else { &self.shared.limiter };
        let shadow = shadow.flag("shadow")?;
        let (on_store_error, shed) = (on_store_error?, shed?);
        let can_fail = self.shared.can_fail;
        let about = About { algorithm, on_store_error, enforce: !shadow, can_fail };
        let excess = settling::excess(view, about, problems);
        let counts = settling::counts(view, about, problems);
        let reserve = settling::reserve(view, about, problems);
        let lease = beside::lease(view, can_fail, problems);
        let (excess, counts) = (excess?, counts?);
        let struck = Struck { whose, enforce: !shadow, excess, counts: counts.as_ref() };
        let in_flight = beside::in_flight(view, name?, names, problems);
        let penalty = beside::penalty(view, name?, &struck, names, problems);
        let estimate = view.view("reserve").filter(|reserve| reserve.has("units"));
        let costs = match estimate {
            Some(reserve) => Arc::new(CostTable::flat(Cost::new(reserve.whole("units")?))),
            None => costs?,
        };
        let max_cost = costs.max_cost(methods, path?);
        Some(Rest {
            whose,
            costs,
            max_cost,
            on_store_error,
            shed,
            enforce: !shadow,
            excess,
            counts,
            reserve: reserve?,
            in_flight: in_flight?,
            penalty: penalty?,
            lease: lease?,
        })
    }
}

/// What has to be known of a policy to read the rest.
struct Kind<'a> {
    name: Option<&'a str>,
    whose: Whose,
    algorithm: Option<Algorithm>,
}

struct Rest {
    whose: Whose,
    costs: Arc<CostTable>,
    max_cost: Cost,
    on_store_error: OnStoreError,
    shed: Option<OnStoreError>,
    enforce: bool,
    excess: OnExceeded,
    counts: Option<Vec<Statuses>>,
    reserve: Option<ReservePlan>,
    in_flight: Option<Policy>,
    penalty: Option<PenaltyPlan>,
    lease: Option<Leased>,
}

impl Rest {
    /// The limit of this name; without policies, only what stands beside a quota.
    fn limit(
        self,
        name: &str,
        policies: Option<Policies>,
        problems: &mut Problems,
    ) -> Option<LimitPlan> {
        let fails = |policy: Policy| {
            let policy = policy.with_on_store_error(self.on_store_error);
            self.shed.into_iter().fold(policy, Policy::with_shed)
        };
        let mut whole = |policy: Policy| match &self.lease {
            Some(lease) => lease.of(fails(policy), problems),
            None => Some(fails(policy)),
        };
        let (policy, tiers, mut also) = match policies {
            Some(Policies { first, tiers, also }) => (Some(whole(first)?), tiers, also),
            None => (None, Vec::new(), Vec::new()),
        };
        let mut some = |policy: Policy| whole(policy).map(Some);
        let tiers = tiers.into_iter().map(|policy| policy.map_or(Some(None), &mut some));
        let tiers = tiers.collect::<Option<_>>()?;
        for quota in &mut also {
            for policy in quota.everybody.iter_mut().chain(quota.tiers.iter_mut().flatten()) {
                *policy = whole(policy.clone())?;
            }
        }
        let is_quota = policy.is_some();
        let penalty =
            |penalty: PenaltyPlan| PenaltyPlan { policy: fails(penalty.policy), ..penalty };
        Some(LimitPlan {
            name: name.to_owned(),
            policy,
            tiers,
            also,
            whose: self.whose,
            // What is under way is one, whatever it costs.
            costs: if is_quota { self.costs } else { Arc::new(CostTable::flat(Cost::ONE)) },
            max_cost: if is_quota { self.max_cost } else { Cost::ONE },
            enforce: self.enforce,
            excess: self.excess,
            counts: self.counts.filter(|_| is_quota),
            reserve: self.reserve.filter(|_| is_quota),
            in_flight: self.in_flight.map(fails),
            penalty: self.penalty.map(penalty),
        })
    }
}

fn apis(
    view: &View<'_>,
    maker: &Maker<'_, '_>,
    client: Option<&Client>,
    names: &mut Names,
    problems: &mut Problems,
) -> Arc<[ApiPlan]> {
    let mut apis: Vec<(ApiPlan, Item<'_>)> = Vec::new();
    for item in view.items("apis") {
        if let Some(view) = item.view()
            && let Some(api) = api(&view, maker, client, names, problems)
        {
            apis.push((api, item));
        }
    }
    warn_of_shadowed(&apis, problems);
    apis.into_iter().map(|(api, _)| api).collect()
}

fn api(
    view: &View<'_>,
    maker: &Maker<'_, '_>,
    client: Option<&Client>,
    names: &mut Names,
    problems: &mut Problems,
) -> Option<ApiPlan> {
    let name = view.text("identifier");
    if let Some(name) = name {
        names.take(name, view.place_of("identifier"), problems);
    }
    let path = view.item("path").and_then(|item| paths::path(&item, problems));
    let methods = paths::methods(view);
    let whose = match view.text("per")? {
        "everyone" => Whose::Everybody,
        _ => Whose::Client,
    };
    let any = Methods::default();
    let of = methods.as_ref().unwrap_or(&any);
    if !view.has("share") && !quotas::is_in(view, problems) {
        let kind = Kind { name, whose, algorithm: None };
        let rest = maker.rest(view, kind, of, path.as_ref(), names, problems);
        let limit = rest?.limit(name?, None, problems)?;
        return Some(ApiPlan { methods: methods?, path: path?, limit });
    }
    let algorithm = policy::algorithm(view, maker.shared, problems);
    let kind = Kind { name, whose, algorithm };
    let rest = maker.rest(view, kind, of, path.as_ref(), names, problems);
    let quotas = algorithm.and_then(|algorithm| quotas(view, algorithm, client, problems));
    let (algorithm, mut quotas, name) = (algorithm?, quotas?, name?);
    if whose == Whose::Everybody {
        // One quota for all knows no tiers.
        quotas.tiers.clear();
    }
    let share = view.text("share").and_then(format::share);
    let policies = quotas.policies(name, algorithm, share, names, problems)?;
    let limit = rest?.limit(name, Some(policies), problems)?;
    warn_of_dear_requests(&limit, view, problems);
    Some(ApiPlan { methods: methods?, path: path?, limit })
}

/// The quotas of an api, and where they are a share of the client's those of each tier;
/// whole ones, of which the share is yet to be taken.
fn quotas<'a>(
    view: &View<'a>,
    algorithm: Algorithm,
    client: Option<&Client>,
    problems: &mut Problems,
) -> Option<Quotas<'a>> {
    if !view.has("share") {
        let everybody = quotas::of_section(view, algorithm, problems)?;
        return Some(Quotas { everybody, tiers: Vec::new() });
    }
    let Some(client) = client else {
        problems.error(
            view.place_of_key("share"),
            "`client` has no quota of which this could be a share",
            "write a section `client` with a `limit`, or `limit` and `windowSeconds` here",
        );
        return None;
    };
    if let Some(quota) = client.quotas().find(|quota| quota.calendar().is_some())
        && algorithm != Algorithm::FixedWindowCounter
    {
        problems.error(
            view.place_of("share"),
            format!(
                "this is a part of a quota per {}, which a {algorithm} cannot count",
                quota.span()
            ),
            "write `strategy: fixed_window_counter`, or `limit` and `windowSeconds`",
        );
        return None;
    }
    let quotas = Quotas::of_client(client, view, algorithm);
    if quotas.are_several() && is_queue(algorithm) {
        problems.error(
            view.place_of_key("share"),
            "a queue leaves at one rate, and `client` has several quotas at the same time",
            "write `mode: meter`, another `strategy`, or a `limit` in place of the share",
        );
        return None;
    }
    Some(quotas)
}

/// A request that costs more than ever passes at once is always refused.
fn warn_of_dear_requests(limit: &LimitPlan, view: &View<'_>, problems: &mut Problems) {
    let max_cost = limit.max_cost.get();
    let Some(least) = limit.policies().map(Policy::capacity).min() else { return };
    if max_cost > least {
        let key = ["burst", "limit", "share"].into_iter().find(|key| view.has(key));
        problems.warn(
            key.map_or_else(|| view.place(), |key| view.place_of(key)),
            format!("a request may cost {max_cost}, and no more than {least} ever pass at once: it is always refused"),
            if limit.policy.as_ref().and_then(Policy::algorithm).is_some_and(is_bucket) {
                "raise `burst`, or lower the cost"
            } else {
                "raise `limit`, or lower the cost"
            },
        );
    }
}

fn warn_of_shadowed(apis: &[(ApiPlan, Item<'_>)], problems: &mut Problems) {
    let mut comparisons = 0;
    for (index, (api, item)) in apis.iter().enumerate() {
        // Thousands of expressions against thousands of paths would take minutes.
        comparisons += index;
        if comparisons > MOST_COMPARISONS {
            return;
        }
        let earlier = apis[..index].iter().find(|(earlier, _)| {
            earlier.methods.cover(&api.methods) && earlier.path.covers(&api.path)
        });
        if let Some((earlier, _)) = earlier {
            problems.warn(
                item.view().map_or_else(|| item.place(), |view| view.place_of("path")),
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
