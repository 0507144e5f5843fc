//! Which requests go where.

use std::collections::HashSet;
use std::sync::Arc;

use tollgate::{OnExceeded, Policy};

use super::super::problem::{Place, Problems};
use super::super::view::{Item, View};
use super::limits::{self, Limits};
use super::policy::Names;
use super::server::has_fronts;
use super::target::target;
use super::{Shared, paths};
use crate::plan::{LimitPlan, PathMatch, Route, RouteLimits, Whose};

/// The routes of a file; the last one is that of `target`.
pub(super) fn routes(
    root: &View<'_>,
    shared: &Shared<'_>,
    limits: &Limits,
    names: &mut Names,
    problems: &mut Problems,
) -> Option<Vec<Route>> {
    let limiter = &shared.limiter;
    let mut routes: Vec<(Route, Place)> = Vec::new();
    let mut is_whole = true;
    for item in limiter.items("routes") {
        let Some(view) = item.view() else {
            is_whole = false;
            continue;
        };
        match route(&view, shared, limits, names, problems) {
            Some(route) => routes.push((route, view.place_of("name"))),
            None => is_whole = false,
        }
    }
    let fallback = match (limiter.item("target"), root.item("target")) {
        (Some(_), Some(outer)) => {
            problems.error(
                outer.place(),
                "`target` says the same as `rateLimiter.target`",
                "keep one of the two",
            );
            return None;
        }
        (item, outer) => item.or(outer),
    };
    let decides = limiter.has("forwardAuth");
    let is_asked = limiter.has("listen") || !has_fronts(limiter);
    if is_asked && limiter.item("routes").is_none() && fallback.is_none() {
        problems.error(
            limiter.place(),
            "`target` is missing: nothing says where requests go",
            "add `target: http://localhost:3000`",
        );
    }
    let target = fallback.as_ref().map(|item| target(item, &PathMatch::Any, problems));
    is_whole &= !matches!(target, Some(None));
    let target = target.flatten();
    // Requests that no route takes have limits as well.
    if target.is_some() || decides {
        let limits = limits.limits.clone();
        let route =
            Route { name: FALLBACK.to_owned(), host: None, path: PathMatch::Any, target, limits };
        let place = limiter.place_of("target");
        routes.push((route, place));
    }
    check(&routes, shared, problems);
    warn_without_limits(limiter, problems);
    if decides {
        check_fronts(&routes, limiter, problems);
    }
    is_whole.then(|| routes.into_iter().map(|(route, _)| route).collect())
}

/// The route of `target`.
const FALLBACK: &str = "default";

fn route(
    view: &View<'_>,
    shared: &Shared<'_>,
    outer: &Limits,
    names: &mut Names,
    problems: &mut Problems,
) -> Option<Route> {
    let name = view.text("name");
    let limits = limits::of_route(view, name.unwrap_or("?"), outer, shared, names, problems);
    let path = match view.item("path") {
        Some(item) => paths::path(&item, problems),
        None => Some(PathMatch::Any),
    };
    let target = match view.item("target") {
        Some(item) => Some(target(&item, path.as_ref()?, problems)?),
        None if shared.limiter.has("forwardAuth") => None,
        None => {
            problems.error(
                view.place(),
                "`target` is missing: nothing says where requests of this route go",
                "add `target: http://localhost:3000`, or `forwardAuth` to decide for another proxy",
            );
            return None;
        }
    };
    let host = match view.item("host") {
        Some(item) => Some(item.text()?.to_ascii_lowercase()),
        None => None,
    };
    Some(Route { name: name?.to_owned(), host, path: path?, target, limits })
}

/// Whether requests go anywhere.
pub(super) fn has_target(root: &View<'_>, limiter: &View<'_>) -> bool {
    let routes = limiter.items("routes");
    root.has("target")
        || limiter.has("target")
        || routes.iter().filter_map(Item::view).any(|view| view.has("target"))
}

/// What routes must not be to each other, and limits of a route not.
fn check(routes: &[(Route, Place)], shared: &Shared<'_>, problems: &mut Problems) {
    for (index, (route, place)) in routes.iter().enumerate() {
        let earlier = &routes[..index];
        if earlier.iter().any(|(other, _)| other.name == route.name) {
            problems.error(
                place.clone(),
                format!("two routes are named `{}`", route.name.escape_debug()),
                if index + 1 == routes.len() && route.name == FALLBACK {
                    "`default` is the route of `target`: give the other one another name"
                } else {
                    "give each a name of its own"
                },
            );
        }
        let shadow = earlier.iter().find(|(other, _)| {
            (other.host.is_none() || other.host == route.host) && other.path.covers(&route.path)
        });
        if let Some((other, _)) = shadow {
            problems.warn(
                place.clone(),
                format!(
                    "no request gets here: the route `{}` before it takes them all",
                    other.name
                ),
                "move the narrower one up, or remove one of them",
            );
        }
        check_queues(&route.limits, place, problems);
        check_penalties(&route.limits, place, problems);
        if shared.can_fail {
            warn_of_leases(&route.limits, place, problems);
        }
        if shared.is_cluster {
            warn_of_slots(&route.limits, place, problems);
        }
    }
}

/// A file without limits is a mistake more often than not.
fn warn_without_limits(limiter: &View<'_>, problems: &mut Problems) {
    let limits = |view: &View<'_>| ["client", "global", "apis"].iter().any(|key| view.has(key));
    let routes = limiter.items("routes");
    let has_own = limiter.has("rateLimitService");
    if !has_own
        && !limits(limiter)
        && !routes.iter().filter_map(Item::view).any(|view| limits(&view))
    {
        problems.warn(limiter.place(), "nothing is limited", "add `client`, `global` or `apis`");
    }
}

/// A proxy that asks for a decision reports no response.
fn check_fronts(routes: &[(Route, Place)], limiter: &View<'_>, problems: &mut Problems) {
    let mut told = HashSet::new();
    for limit in routes.iter().flat_map(|(route, _)| route.limits.all()) {
        let penalty = limit.penalty.as_ref().and_then(|penalty| penalty.failures.as_ref());
        let keys = [
            ("concurrency", limit.in_flight.is_some()),
            ("countOnly", limit.counts.is_some()),
            ("reserve", limit.reserve.is_some()),
            ("penalty.of: failures", penalty.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            if told.insert((limit.name.clone(), key)) {
                let name = limit.name.escape_debug();
                problems.error(
                    limiter.place_of_key("forwardAuth"),
                    format!("`{key}` of `{name}` needs the response, which no proxy reports here"),
                    format!("remove `{key}` from `{name}`, or forward its requests with a target and without `forwardAuth`"),
                );
            }
        }
    }
}

/// A request can wait in one queue alone.
fn check_queues(limits: &RouteLimits, place: &Place, problems: &mut Problems) {
    let queues =
        |limit: &&LimitPlan| limit.enforce && limit.policy.as_ref().is_some_and(Policy::queues);
    let api = limits.apis.iter().map(|api| &api.limit).find(queues);
    let mut waiting = limits.everywhere().filter(queues).chain(api);
    if let (Some(first), Some(second)) = (waiting.next(), waiting.next()) {
        problems.error(
            place.clone(),
            format!(
                "a request would wait in two queues, those of `{}` and `{}`",
                first.name, second.name
            ),
            "write `mode: meter` or another `strategy` for one of them",
        );
    }
}

/// Who waits is denied at first, which is no offence.
fn check_penalties(limits: &RouteLimits, place: &Place, problems: &mut Problems) {
    let waits =
        |limit: &LimitPlan| limit.enforce && matches!(limit.excess, OnExceeded::Wait { .. });
    let strikes = |limit: &LimitPlan| {
        limit.penalty.as_ref().is_some_and(|penalty| penalty.failures.is_none())
    };
    for met in limits.met() {
        let struck = met.iter().find(|limit| strikes(limit));
        let waiting = met.iter().find(|limit| waits(limit));
        if let (Some(struck), Some(waiting)) = (struck, waiting) {
            problems.error(
                place.clone(),
                format!(
                    "requests wait for `{}`, and the penalty of `{}` would take that for denials",
                    waiting.name, struck.name
                ),
                "write `of: failures` in the penalty, or `excess: reject`",
            );
            return;
        }
    }
}

/// A request is spared a call if nothing that it meets needs one.
fn warn_of_leases(limits: &RouteLimits, place: &Place, problems: &mut Problems) {
    let everywhere: Vec<_> = limits.everywhere().collect();
    let Some(asking) = everywhere.iter().find(|limit| !limit.is_leased()) else {
        return;
    };
    if let Some(leased) = limits.all().find(|limit| limit.is_leased()) {
        problems.warn(
            place.clone(),
            format!(
                "the lease of `{}` spares no call to Redis: each of its requests asks for `{}` too",
                leased.name, asking.name
            ),
            "lease both, or remove the lease",
        );
    }
}

/// On a Cluster only what belongs to one subject can be decided in one step.
fn warn_of_slots(limits: &RouteLimits, place: &Place, problems: &mut Problems) {
    let all = [&limits.global, &limits.client].into_iter().flatten().map(Arc::as_ref);
    let all: Vec<_> = all.chain(limits.apis.iter().map(|api| &api.limit)).collect();
    let of = |whose: Whose| all.iter().find(|limit| limit.whose == whose);
    if let (Some(everybody), Some(client)) = (of(Whose::Everybody), of(Whose::Client)) {
        problems.warn(
            place.clone(),
            format!(
                "`{}` and `{}` cannot share a slot of the Cluster: they are decided one after the \
                 other, so that a request that one of them denies may keep a place in the other \
                 for a moment",
                everybody.name, client.name
            ),
            "nothing is admitted too much; use one Redis server if that is not enough",
        );
    }
}
