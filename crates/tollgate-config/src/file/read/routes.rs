use std::collections::HashSet;

use tollgate::Policy;

use super::context::FileContext;
use super::limits::{self, Limits};
use super::paths;
use super::target::target;
use crate::code;
use crate::file::tables::{self, File, RateLimiter};
use crate::plan::{LimitPlan, PathMatch, Route, RouteLimits};
use crate::yaml::problem::Checked;
use crate::yaml::typed::Location;

pub(super) fn routes(
    root: &File,
    file: &FileContext<'_>,
    limits: &Limits<'_>,
) -> Checked<Vec<Route>> {
    let limiter = file.limiter;
    let items = limiter.routes.items().unwrap_or_default().iter();
    // An invalid route is reported, so there is no plan.
    let routes = items.filter_map(|item| {
        let section = item.get().ok()?;
        Some((route(section, file, limits).ok()?, section.name.location()))
    });
    let mut routes: Vec<_> = routes.collect();
    if limiter.target.is_set() && root.target.is_set() {
        return Err(root.target.error(
            code::EXCLUSIVE_KEYS,
            "`target` duplicates `rateLimiter.target`",
            "keep one of the two",
        ));
    }
    let fallback = if limiter.target.is_set() { &limiter.target } else { &root.target };
    let decides = limiter.forward_auth.is_set();
    let is_asked = limiter.listen.is_set() || !limiter.has_fronts();
    if is_asked && !limiter.routes.is_set() && !fallback.is_set() {
        limiter.info.location.error(
            code::NO_TARGET,
            "`target` is missing: requests have no destination",
            "add `target: http://localhost:3000`",
        );
    }
    let target = fallback.there().and_then(|it| target(it, &PathMatch::any(), limiter).ok());
    // Limits also apply to requests that match no route.
    if target.is_some() || decides {
        let limits = limits.limits.clone();
        let route =
            Route { name: FALLBACK.to_owned(), host: None, path: PathMatch::any(), target, limits };
        routes.push((route, limiter.target.location()));
    }
    check(&routes, file);
    warn_without_limits(limiter);
    if decides {
        check_fronts(&routes, limiter);
    }
    Ok(routes.into_iter().map(|(route, _)| route).collect())
}

const FALLBACK: &str = "default";

fn route(section: &tables::Route, file: &FileContext<'_>, outer: &Limits<'_>) -> Checked<Route> {
    let name = section.name.get();
    let known = name.map_or("?", |name| name);
    let path = section.path.get();
    let path = path.and_then(|path| paths::path(path, &section.path.location()));
    let any = PathMatch::any();
    let limits = limits::of_route(section, known, path.as_ref().unwrap_or(&any), outer, file);
    let target = match section.target.get()? {
        Some(section) => {
            let path = path.as_ref().map_err(|reported| *reported)?;
            Some(target(section, path, file.limiter)?)
        }
        None if file.limiter.forward_auth.is_set() => None,
        None => {
            return Err(section.info.location.error(
                code::NO_TARGET,
                "`target` is missing: requests on this route have no destination",
                "add `target: http://localhost:3000`, or `forwardAuth` to decide for another proxy",
            ));
        }
    };
    Ok(Route { name: name?.clone(), host: section.host.value()?, path: path?, target, limits })
}

fn check(routes: &[(Route, Location)], file: &FileContext<'_>) {
    for (index, (route, location)) in routes.iter().enumerate() {
        let earlier = &routes[..index];
        if earlier.iter().any(|(other, _)| other.name == route.name) {
            location.error(
                code::ROUTE_NAME,
                format!("two routes are named `{}`", route.name.escape_debug()),
                if index + 1 == routes.len() && route.name == FALLBACK {
                    "`default` is the route of `target`: give the other route another name"
                } else {
                    "give each its own name"
                },
            );
        }
        let shadow = earlier.iter().find(|(other, _)| {
            (other.host.is_none() || other.host == route.host) && other.path.covers(&route.path)
        });
        if let Some((other, _)) = shadow {
            location.warn(
                code::UNREACHABLE,
                format!(
                    "no request reaches this route, because the route `{}` before it matches all",
                    other.name
                ),
                "move the narrower route up, or remove either",
            );
        }
        check_queues(&route.limits, location);
        check_penalties(&route.limits, location);
        if file.can_fail {
            warn_of_leases(&route.limits, location);
        }
        if file.is_cluster {
            warn_of_slots(&route.limits, location);
        }
    }
}

/// A file without limits is usually a mistake. An unknown key may be such a limit.
fn warn_without_limits(limiter: &RateLimiter) {
    if limiter.info.has_unknown || limiter.all_routes().any(|route| route.info.has_unknown) {
        return;
    }
    let has_limits = limiter.rate_limit_service.is_set()
        || limiter.decision_api.is_set()
        || limiter.client.is_set()
        || limiter.global.is_set()
        || limiter.apis.is_set()
        || limiter.llm.is_set()
        || limiter
            .all_routes()
            .any(|it| it.client.is_set() || it.global.is_set() || it.apis.is_set());
    if !has_limits {
        limiter.info.location.warn(
            code::NOTHING_LIMITED,
            "no request is limited",
            "add `client`, `global` or `apis`",
        );
    }
}

fn check_fronts(routes: &[(Route, Location)], limiter: &RateLimiter) {
    let mut told = HashSet::new();
    for limit in routes.iter().flat_map(|(route, _)| route.limits.all()) {
        let penalty = limit.penalty.as_ref().and_then(|penalty| penalty.failures.as_ref());
        let keys = [
            ("concurrency", limit.in_flight.is_some()),
            ("countOnly", limit.counts.is_some()),
            ("forgiveOn", limit.forgives.is_some()),
            ("reserve", limit.reserve.is_some()),
            ("penalty.of: failures", penalty.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            if told.insert((limit.name.clone(), key)) {
                let name = limit.name.escape_debug();
                limiter.forward_auth.name().error(
                    code::NEEDS_TARGET,
                    format!("`{key}` of `{name}` needs the response, which no proxy reports here"),
                    format!(
                        "remove `{key}` from `{name}`, or forward its requests with a target and \
                         without `forwardAuth`"
                    ),
                );
            }
        }
    }
}

/// A leaky bucket cannot keep a place in its queue until another policy allows the request.
fn check_queues(limits: &RouteLimits, location: &Location) {
    let queues =
        |limit: &&LimitPlan| limit.enforces() && limit.policy().is_some_and(Policy::queues);
    let is_leaky = |limit: &&LimitPlan| limit.policy().is_some_and(Policy::is_leaky_queue);
    for met in limits.met() {
        let queueing: Vec<_> = met.into_iter().filter(queues).collect();
        if let [first, second, ..] = &*queueing
            && queueing.iter().any(is_leaky)
        {
            location.error(
                code::TWO_QUEUES,
                format!(
                    "a request would wait in two queues, for `{}` and `{}`",
                    first.name, second.name
                ),
                "for a leaky_bucket, write another `strategy`, or `mode: meter` with \
                 `excess: {queue: 30s}`",
            );
            return;
        }
    }
}

/// A waiting request is first denied, which must not count as a strike.
fn check_penalties(limits: &RouteLimits, location: &Location) {
    let waits = |limit: &LimitPlan| limit.mode.max_wait().is_some();
    let strikes = |limit: &LimitPlan| {
        limit.penalty.as_ref().is_some_and(|penalty| penalty.failures.is_none())
    };
    for met in limits.met() {
        let struck = met.iter().find(|limit| strikes(limit));
        let waiting = met.iter().find(|limit| waits(limit));
        if let (Some(struck), Some(waiting)) = (struck, waiting) {
            location.error(code::PENALTY_BESIDE_WAITING,
                format!(
                    "requests wait for `{}`, and the penalty of `{}` would count each wait as a denial",
                    waiting.name, struck.name
                ),
                "write `of: failures` in the penalty, or `excess: reject`",
            );
            return;
        }
    }
}

/// A lease saves a call only if all of a request's policies are leased.
fn warn_of_leases(limits: &RouteLimits, location: &Location) {
    let everywhere: Vec<_> = limits.everywhere().collect();
    let Some(asking) = everywhere.iter().find(|limit| !limit.is_leased()) else {
        return;
    };
    if let Some(leased) = limits.all().find(|limit| limit.is_leased()) {
        location.warn(
            code::LEASE_SAVES_NOTHING,
            format!(
                "the lease of `{}` saves no call to Redis: each of its requests also needs `{}`",
                leased.name, asking.name
            ),
            "lease both, or remove the lease",
        );
    }
}

/// A Cluster decides policies in one step only if they have the same key.
fn warn_of_slots(limits: &RouteLimits, location: &Location) {
    let mut all = limits.all();
    let Some(first) = all.next() else { return };
    if let Some(other) = all.find(|limit| limit.whose != first.whose) {
        location.warn(
            code::SLOTS,
            format!(
                "`{}` and `{}` are in different slots of the Cluster and are decided one after the \
                 other: a request that one of them denies may count in the other for a moment",
                first.name, other.name
            ),
            "no limit is exceeded; use a single Redis server if this matters",
        );
    }
}
