//! From a plan to what serves it: routes, and a limiter for each kind of request.

use std::sync::Arc;

use http::Method;
use tollgate::body::SameBody;
use tollgate::denial::Problem;
use tollgate::status::{Inspect, LayerHandle};
use tollgate::{Costs, Limit, Observer, RateLimit, RateLimitLayer};
use tower_layer::Layer;

use super::identity::{Found, Identity};
use crate::plan::{ApiPlan, LimitPlan, Plan, Protocol, Route, Target, Whose};
use crate::proxy::{self, Clients, Forward, Tunnels, Upstream};

/// A plan that could not be put to work, and why: a file that it names, mostly.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BuildError(pub(crate) String);

/// A service behind its limits.
pub(super) type Limited<St> = RateLimit<Forward, St, SameBody>;

/// A route that is ready to serve.
pub(super) struct ReadyRoute<St> {
    pub(super) plan: Route,
    /// What no limit is about goes straight here.
    pub(super) free: Forward,
    /// For each api of the plan, and last for requests that none of them matches: the
    /// service for requests without a tier, then that of each tier. `None` where nothing
    /// limits them.
    limited: Vec<Vec<Option<Limited<St>>>>,
}

impl<St: Inspect> ReadyRoute<St> {
    /// The limits of a request to a path in normal form.
    pub(super) fn limits(
        &self,
        method: &Method,
        path: &str,
        tier: Option<usize>,
    ) -> Option<&Limited<St>> {
        let apis = &self.plan.limits.apis;
        let matches = |api: &ApiPlan| api.methods.contain(method) && api.path.matches(path);
        let kind = apis.iter().position(matches).unwrap_or(apis.len());
        let tiers = self.limited.get(kind)?;
        tiers.get(tier.map_or(0, |tier| tier + 1)).or_else(|| tiers.first())?.as_ref()
    }
}

impl<St: Inspect> ReadyRoute<St> {
    /// The layers of all kinds of requests.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerHandle> {
        self.limited.iter().flatten().flatten().map(RateLimit::handle)
    }
}

/// Whatever the limiters and the routes of one plan share.
pub(super) struct Parts<'a, St> {
    pub(super) plan: &'a Plan,
    pub(super) store: &'a St,
    pub(super) clients: &'a Clients,
    pub(super) tunnels: &'a Tunnels,
    pub(super) name: &'a Arc<str>,
    pub(super) identity: &'a Identity,
    pub(super) observer: &'a Observer,
}

impl<St: Inspect> Parts<'_, St> {
    pub(super) fn route(&self, plan: &Route) -> Result<ReadyRoute<St>, BuildError> {
        let free = Forward::new(
            upstream(&plan.target),
            self.plan.trusted_proxies.clone(),
            self.clients.clone(),
            self.tunnels.clone(),
            Arc::clone(self.name),
        );
        let apis = plan.limits.apis.iter().map(Some).chain([None]);
        let tiers = || [None].into_iter().chain((0..self.plan.tiers.len()).map(Some));
        let limited = apis
            .map(|api| tiers().map(|tier| self.limited(plan, api, tier, &free)).collect())
            .collect::<Result<_, _>>()?;
        Ok(ReadyRoute { plan: plan.clone(), free, limited })
    }

    /// All that holds for one kind of request, in one layer: one step of the store decides
    /// it, all or none.
    fn limited(
        &self,
        route: &Route,
        api: Option<&ApiPlan>,
        tier: Option<usize>,
        free: &Forward,
    ) -> Result<Option<Limited<St>>, BuildError> {
        let limits = [route.limits.global.as_deref(), route.limits.client.as_deref()];
        let limits: Vec<_> =
            limits.into_iter().flatten().chain(api.map(|api| &api.limit)).collect();
        if limits.is_empty() {
            return Ok(None);
        }
        let mut layer = RateLimitLayer::builder(self.store.clone())
            .headers(self.plan.headers)
            .on_missing_key(self.plan.on_missing_key)
            .observer(self.observer)
            .endpoint(api.map_or("other", |api| api.limit.policy.name()))
            .on_denied(Problem::with_members(self.plan.members.clone()));
        for limit in limits {
            layer = layer.limit(self.limit(limit, tier));
        }
        let layer = layer
            .build()
            .map_err(|error| BuildError(format!("route `{}`: {error}", route.name)))?;
        Ok(Some(layer.same_body().layer(free.clone())))
    }

    fn limit(&self, plan: &LimitPlan, tier: Option<usize>) -> Limit {
        let policy = plan.policy_in(tier).clone();
        let limit = match plan.whose {
            Whose::Everybody => Limit::global(policy),
            Whose::Client => Limit::new(policy, Found(self.identity.clone())),
        };
        let table = Arc::clone(&plan.costs);
        // The closure has an answer for every request; the flat cost tells the layer the
        // dearest, which it warns about when no burst could ever hold it.
        let costs = Costs::flat(plan.dearest)
            .with(move |head| Some(table.of(head.method, head.uri.path())));
        let limit = limit.costs(costs);
        if plan.enforce { limit } else { limit.shadow() }
    }
}

fn upstream(target: &Target) -> Upstream {
    Upstream {
        scheme: target.scheme.clone(),
        authority: target.authority.clone(),
        base_path: target.base_path.clone(),
        protocol: match target.protocol {
            Protocol::Http1 => proxy::Protocol::Http1,
            Protocol::Http2 => proxy::Protocol::Http2,
        },
        host: if target.preserve_host { proxy::Host::Client } else { proxy::Host::Target },
    }
}
