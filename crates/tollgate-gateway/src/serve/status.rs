//! The path at which clients read their limits.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use http::uri::Authority;
use tollgate::layer::Status;
use tollgate::observe::Inspect;
use tollgate_config::plan::{ChargePlan, LimitPlan, PathMatch, Route};
use tollgate_engine::Methods;

use super::decide::build::ReadyRoute;

/// The limits that apply to clients, by the requested host.
pub(super) struct StatusPages<St> {
    hosts: Vec<(String, Status<St>)>,
    /// For hosts that no route names.
    other: Status<St>,
}

impl<St: Inspect> StatusPages<St> {
    pub(super) fn new(routes: &[ReadyRoute<St>]) -> Self {
        let mut hosts: Vec<(String, Status<St>)> = Vec::new();
        for host in routes.iter().filter_map(|route| route.plan.host.as_deref()) {
            if !hosts.iter().any(|(known, _)| known == host) {
                hosts.push((host.to_owned(), status(routes, Some(host))));
            }
        }
        Self { hosts, other: status(routes, None) }
    }

    pub(super) fn of(&self, host: Option<&Authority>) -> &Status<St> {
        let host = host.map(|host| host.host().trim_end_matches('.'));
        let named =
            |(known, _): &&(String, _)| host.is_some_and(|host| host.eq_ignore_ascii_case(known));
        self.hosts.iter().find(named).map_or(&self.other, |(_, status)| status)
    }
}

/// The limits that requests to a host can meet. Each policy appears once.
fn status<St: Inspect>(routes: &[ReadyRoute<St>], host: Option<&str>) -> Status<St> {
    let mut met: Vec<&ReadyRoute<St>> = Vec::new();
    for route in routes {
        let is_host = route.plan.host.is_none() || route.plan.host.as_deref() == host;
        if is_host && !met.iter().any(|earlier| earlier.plan.path.covers(&route.plan.path)) {
            met.push(route);
        }
    }
    let requests = Requests::of(met.iter().map(|route| &route.plan));
    let mut shown = HashSet::new();
    let mut status = Status::default();
    for layer in met.iter().flat_map(|route| route.limiters()) {
        if layer.limits().all(|limit| shown.contains(limit.policy().name())) {
            continue;
        }
        let of_layer = layer.status().showing(|limit| {
            let name = limit.policy().name();
            shown.insert(name.to_owned()).then(|| requests.to(name)).flatten()
        });
        status = status.and(&of_layer);
    }
    status
}

/// The requests that each policy limits. An empty list means all requests.
#[derive(Debug, Default)]
struct Requests<'p>(HashMap<&'p str, Vec<String>>);

impl<'p> Requests<'p> {
    fn of(routes: impl Iterator<Item = &'p Route>) -> Self {
        let mut requests = Self::default();
        for Route { path, limits, .. } in routes {
            for limit in limits.everywhere() {
                requests.add(limit, &Methods::default(), path);
            }
            for api in &*limits.apis {
                let path = match (path, &api.path) {
                    (route, api) if api.covers(route) => route,
                    (route, api) if route.covers(api) => api,
                    // Two patterns are nested or have no path in common.
                    (PathMatch::Pattern(_), PathMatch::Pattern(_)) => continue,
                    (_, api) => api,
                };
                api.limits().for_each(|limit| requests.add(limit, &api.methods, path));
            }
        }
        requests
    }

    fn add(&mut self, limit: &'p LimitPlan, methods: &Methods, path: &PathMatch) {
        let text = match (methods.is_all(), *path == PathMatch::any()) {
            (true, true) => None,
            (true, false) => Some(path.to_string()),
            (false, _) => Some(format!("{methods} {path}")),
        };
        for policy in limit.charges().filter_map(ChargePlan::any_policy) {
            let known = self.0.entry(policy.name());
            match (&text, known) {
                // Another route adds nothing to all requests.
                (_, Entry::Occupied(known)) if known.get().is_empty() => {}
                (None, known) => drop(known.insert_entry(Vec::new())),
                (Some(text), known) => {
                    let texts = known.or_default();
                    if !texts.contains(text) {
                        texts.push(text.clone());
                    }
                }
            }
        }
    }

    /// `None` if the policy limits no request.
    fn to(&self, policy: &str) -> Option<Vec<String>> {
        self.0.get(policy).cloned()
    }
}
