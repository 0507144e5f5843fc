//! From a plan to what serves it: routes, and a limiter for each kind of request.

use std::sync::Arc;

use http::Method;
use tollgate::body::SameBody;
use tollgate::denial::Problem;
use tollgate::status::{Inspect, LayerHandle};
use tollgate::{Costs, Limit, Observer, RateLimit, RateLimitLayer};
use tower_layer::Layer;

use super::identity::{Found, Identity};
use crate::files::FileError;
use crate::plan::{
    ApiPlan, ForwardingHeader, IdentitySource, LimitPlan, Plan, Protocol, Route, Target, Whose,
};
use crate::proxy::{self, Clients, Forward, Fronts, Tunnels, Upstream};

/// A plan that could not be put to work, and why: a file that it names, mostly.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BuildError(pub(crate) String);

impl From<FileError> for BuildError {
    fn from(error: FileError) -> Self {
        Self(error.to_string())
    }
}

/// A service behind its limits.
pub(super) type Limited<St> = RateLimit<Forward, St, SameBody>;

/// A route that is ready to serve.
pub(super) struct ReadyRoute<St> {
    pub(super) plan: Route,
    /// What no limit is about goes straight here.
    pub(super) free: Forward,
    limiters: Arc<Limiters<St>>,
    /// Whether an earlier route has them too.
    shares_limiters: bool,
}

/// For each api of a route, and last for requests that none of them matches: the limits of
/// requests without a tier, then those of each tier. `None` where nothing limits them.
type Limiters<St> = Vec<Vec<Option<RateLimitLayer<St, SameBody>>>>;

impl<St: Inspect> ReadyRoute<St> {
    /// The route behind the limits of a request to a path in normal form.
    pub(super) fn limits(
        &self,
        method: &Method,
        path: &str,
        tier: Option<usize>,
    ) -> Option<Limited<St>> {
        let apis = &self.plan.limits.apis;
        let matches = |api: &ApiPlan| api.methods.contain(method) && api.path.matches(path);
        let kind = apis.iter().position(matches).unwrap_or(apis.len());
        let tiers = self.limiters.get(kind)?;
        let layer = tiers.get(tier.map_or(0, |tier| tier + 1)).or_else(|| tiers.first())?;
        layer.as_ref().map(|layer| layer.layer(self.free.clone()))
    }

    /// The layers of all kinds of requests, unless an earlier route has the same.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerHandle> {
        let own = (!self.shares_limiters).then_some(&self.limiters);
        own.into_iter().flat_map(|own| own.iter().flatten().flatten()).map(RateLimitLayer::handle)
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
    /// The routes of the plan, in their order.
    ///
    /// Those with the same limits share the limiters: one for each api and tier is much by
    /// itself, and as many for each of a hundred routes would take the memory of the machine.
    pub(super) fn routes(&self) -> Result<Vec<ReadyRoute<St>>, BuildError> {
        let mut ready: Vec<ReadyRoute<St>> = Vec::new();
        for route in &self.plan.routes {
            let like = ready.iter().find(|other| other.plan.limits.is_shared_with(&route.limits));
            let shares_limiters = like.is_some();
            let limiters = match like {
                Some(other) => Arc::clone(&other.limiters),
                None => Arc::new(self.limiters(route)?),
            };
            let free = self.forward(&route.target);
            ready.push(ReadyRoute { plan: route.clone(), free, limiters, shares_limiters });
        }
        Ok(ready)
    }

    fn forward(&self, target: &Target) -> Forward {
        Forward::new(
            upstream(target),
            self.fronts(),
            self.clients.clone(),
            self.tunnels.at_most(self.plan.max_tunnels),
            Arc::clone(self.name),
        )
    }

    fn fronts(&self) -> Fronts {
        let header = self.plan.identity.iter().find_map(|source| match source {
            IdentitySource::Ip { header: Some(ForwardingHeader::Single(name)), .. } => {
                Some(name.clone())
            }
            _ => None,
        });
        Fronts { proxies: self.plan.trusted_proxies.clone(), header }
    }

    fn limiters(&self, route: &Route) -> Result<Limiters<St>, BuildError> {
        let apis = route.limits.apis.iter().map(Some).chain([None]);
        let tiers = || [None].into_iter().chain((0..self.plan.tiers.len()).map(Some));
        apis.map(|api| tiers().map(|tier| self.limiter(route, api, tier)).collect()).collect()
    }

    /// All that holds for one kind of request, in one layer: one step of the store decides
    /// it, all or none.
    fn limiter(
        &self,
        route: &Route,
        api: Option<&ApiPlan>,
        tier: Option<usize>,
    ) -> Result<Option<RateLimitLayer<St, SameBody>>, BuildError> {
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
        Ok(Some(layer.same_body()))
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
