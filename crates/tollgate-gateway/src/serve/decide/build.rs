//! Builds the plan's routes and limiters. Each kind of request has its own limiter.

use std::sync::Arc;

use http::HeaderName;
use tollgate::headers;
use tollgate::key::{ClientIp, KeySource, RequestHead, SubjectName};
use tollgate::layer::WaitQueue;
use tollgate::limit::{OnMissingKey, Reserve};
use tollgate::observe::{Inspect, LayerHandle, Observer};
use tollgate::policy::OnStoreError;
use tollgate::tier::{Tier, TierSource};
use tollgate::{Costs, Limit, Policy, RateLimitLayer};
use tollgate_config::files;
use tollgate_config::plan::{
    ApiKeyHeader, ApiKeysPlan, ApiPlan, ChargePlan, GroupSource, IdentitySource, LimitPlan,
    LlmPlan, Parameter, Plan, Preflights, QuotaPlan, Route, SettleBy, Statuses, TenantShare,
    ValuePlan, Whose, is_grpc,
};

use super::client_identity::{ClientIdentity, Identity};
use super::denials::Denials;
use super::facts::{Facts, Found};
use super::forgiveness::forgiving;
use super::key_sources;
use super::llm::LlmDenials;
use super::settled::Prices;
use super::tenants::{Numbers, TenantOf};
use crate::serve::answers::AnsweredBy;
use crate::serve::error::BuildError;
use tollgate_proxy::Meter;
use tollgate_proxy::{Common, Forward};

pub(crate) struct ReadyRoute<St> {
    pub(crate) plan: Route,
    pub(crate) forward: Option<Forward>,
    limiters: Arc<Limiters<St>>,
    /// Whether an earlier route has the same limiters.
    shares_limiters: bool,
    pub(crate) meter: Meter,
}

/// The limiters for a route's apis, and last the limiter for requests that match no api. `None`
/// means no limit.
type Limiters<St> = Vec<Option<Limiter<St>>>;

pub(crate) struct Limiter<St> {
    pub(crate) layer: RateLimitLayer<St>,
    pub(crate) prices: Prices,
    pub(crate) llm: Option<Arc<LlmPlan>>,
    /// Whether a limit counts by a field of the body.
    pub(crate) reads_body: bool,
}

/// Limits CORS preflights by client address.
pub(crate) struct Preflight<St> {
    pub(crate) limiter: Limiter<St>,
    source: ClientIp,
}

impl<St> Preflight<St> {
    pub(crate) fn client(&self, head: &RequestHead<'_>) -> ClientIdentity {
        ClientIdentity::by(&self.source, head)
    }
}

impl<St: Inspect> ReadyRoute<St> {
    /// The limiter for requests that match this api. `None` if there is no limit.
    pub(crate) fn limiter(&self, api: Option<usize>) -> Option<&Limiter<St>> {
        self.limiters.get(api.unwrap_or(self.plan.limits.apis.len()))?.as_ref()
    }

    /// The layers for all kinds of requests: first for those that match no api.
    pub(crate) fn limiters(&self) -> impl Iterator<Item = &RateLimitLayer<St>> {
        let (apis, others) = self.limiters.split_at(self.plan.limits.apis.len());
        others.iter().chain(apis).flatten().map(|limiter| &limiter.layer)
    }

    /// The layers for all kinds of requests, unless an earlier route has the same.
    pub(crate) fn layers(&self) -> impl Iterator<Item = LayerHandle> {
        let own = (!self.shares_limiters).then_some(&self.limiters);
        own.into_iter().flat_map(|own| own.iter().flatten()).map(|it| it.layer.handle())
    }
}

pub(crate) struct RouteBuilder<'a, St> {
    pub(crate) plan: &'a Plan,
    pub(crate) store: &'a St,
    pub(crate) common: &'a Common,
    pub(crate) identity: &'a Identity,
    pub(crate) observer: &'a Observer,
    pub(crate) room: &'a WaitQueue,
    /// The look-ups of the plan's tenants.
    pub(crate) tenants: &'a [Arc<Numbers>],
}

impl<St: Inspect> RouteBuilder<'_, St> {
    /// The plan's routes, in order.
    ///
    /// Routes with the same limits share their limiters, because a hundred routes with a limiter
    /// for each api would use too much memory.
    pub(crate) fn routes(&self) -> Result<Vec<ReadyRoute<St>>, BuildError> {
        let mut ready: Vec<ReadyRoute<St>> = Vec::new();
        for route in &self.plan.routes {
            let like = ready.iter().find(|other| other.plan.limits.is_shared_with(&route.limits));
            let shares_limiters = like.is_some();
            let limiters = match like {
                Some(other) => Arc::clone(&other.limiters),
                None => Arc::new(self.limiters(route)?),
            };
            let forward = route.target.as_ref();
            // Read at every reload, like the listeners' certificates.
            let tls = forward.and_then(|target| target.tls.as_ref()).map(files::target_tls);
            let tls = tls.transpose()?;
            let forward = forward.map(|target| {
                Forward::new(target.upstream.clone(), tls.as_ref(), self.common.clone())
            });
            let forward = forward
                .transpose()
                .map_err(|error| BuildError(format!("route `{}`: {error}", route.name)))?;
            let (plan, meter) = (route.clone(), Meter::route(&route.name));
            ready.push(ReadyRoute { plan, forward, limiters, shares_limiters, meter });
        }
        Ok(ready)
    }

    fn limiters(&self, route: &Route) -> Result<Limiters<St>, BuildError> {
        let apis = route.limits.apis.iter().map(Some).chain([None]);
        apis.map(|api| self.limiter(route, api)).collect()
    }

    fn limiter(
        &self,
        route: &Route,
        api: Option<&ApiPlan>,
    ) -> Result<Option<Limiter<St>>, BuildError> {
        let of_api = api.into_iter().flat_map(ApiPlan::limits);
        let limits: Vec<_> = route.limits.everywhere().chain(of_api).collect();
        if limits.is_empty() {
            return Ok(None);
        }
        let endpoint = api.map_or("other", |api| &api.limit.name);
        let llm = api.and_then(|api| api.llm.as_ref());
        let limiter = self.limiter_of(&limits, endpoint, llm);
        limiter.map(Some).map_err(|error| BuildError(format!("route `{}`: {error}", route.name)))
    }

    /// The limiter for CORS preflights, unless they are charged or unlimited. Like all limiters, it
    /// reads the client from the request's [`Facts`].
    pub(crate) fn preflights(&self) -> Result<Option<Preflight<St>>, BuildError> {
        let Preflights::Limited(limit) = &self.plan.preflights else { return Ok(None) };
        let limiter = self.limiter_of(&[&**limit], "preflight", None)?;
        Ok(Some(Preflight { limiter, source: key_sources::addresses(self.plan)? }))
    }

    fn limiter_of(
        &self,
        limits: &[&LimitPlan],
        endpoint: &str,
        llm: Option<&Arc<LlmPlan>>,
    ) -> Result<Limiter<St>, BuildError> {
        let grpc = Arc::clone(&self.plan.grpc);
        let layer = RateLimitLayer::builder(self.store.clone())
            .on_missing_key(self.plan.on_missing_key)
            // `Plan::meets` finds a preflight's limiter.
            .exempt_preflights(false)
            .observer(self.observer)
            .endpoint(endpoint)
            .grpc_if(move |head| is_grpc(&grpc, head.uri.path()))
            .tiers(self.tiers())
            .wait_queue(self.room);
        let (headers, denials) = (self.plan.headers, Denials::of(self.plan));
        let mut layer = match llm {
            None => layer.headers(headers).denial_response(denials),
            Some(_) => {
                layer.headers(headers.x_ratelimit_by_policy()).denial_response(LlmDenials(denials))
            }
        };
        let prices = Prices::of(limits.iter().copied());
        for &plan in limits {
            for charge in plan.charges() {
                layer = layer.limit(self.limit(plan, charge)?);
            }
        }
        let reads_body = limits.iter().any(|limit| self.plan.reads_body(limit));
        Ok(Limiter { layer: layer.build()?, prices, llm: llm.cloned(), reads_body })
    }

    fn tiers(&self) -> impl TierSource + use<St> {
        let names = self.plan.tiers.iter().cloned().map(Tier::from).collect();
        Tiers { names, identity: self.identity.clone() }
    }

    /// A limit's charge, for all clients and for each tier. Clients without a quota skip it.
    fn limit(&self, plan: &LimitPlan, charge: ChargePlan<'_>) -> Result<Limit, BuildError> {
        let any = charge.any_policy();
        let any = any.ok_or_else(|| BuildError("a quota without a policy".to_owned()))?;
        let limit = self.of(any, plan);
        let limit = match charge {
            ChargePlan::Quota(quota) => {
                let limit = self.of_tenants(self.quota(limit, quota)?, plan, quota);
                let limit = corrected(limit.costs(costs(plan)), plan);
                forgiving(limit, plan.forgives.as_ref())
            }
            ChargePlan::InFlight(_) => limit,
            ChargePlan::Penalty(penalty) => {
                let limit = match penalty.failures.clone() {
                    // The gateway's own answers are not strikes, so an outage blocks no client.
                    Some(failures) => {
                        limit.count_only(move |response| Statuses::any(&failures, response.status))
                    }
                    None => limit,
                };
                forgiving(limit, plan.forgives.as_ref())
            }
        };
        let limit = if plan.hide_headers { limit.hide_headers() } else { limit };
        Ok(limit.mode(plan.mode_of(charge)))
    }

    fn quota(&self, mut limit: Limit, quota: &QuotaPlan) -> Result<Limit, BuildError> {
        let QuotaPlan { everybody, tiers } = quota;
        for (name, policy) in self.plan.tiers.iter().zip(tiers) {
            let tier = Tier::from(name.clone());
            limit = match policy {
                Some(policy) => limit.in_tier(tier, policy.quota())?,
                None => limit.unlimited_in_tier(tier),
            };
        }
        Ok(if everybody.is_none() { limit.only_in_tiers() } else { limit })
    }

    /// The numbers of tenants, if they replace this quota.
    fn of_tenants(&self, limit: Limit, plan: &LimitPlan, quota: &QuotaPlan) -> Limit {
        let share = plan.tenants;
        let Some((numbers, TenantShare { share, .. })) =
            share.and_then(|share| Some((self.tenants.get(share.tenants)?, share)))
        else {
            return limit;
        };
        let owner = TenantOf { identity: self.identity.clone(), whose: plan.whose };
        let limit = limit.quota_from_owner(&numbers.lookup, owner);
        let limit = match share {
            Some((part, of)) => limit.fraction_of_quota(part, of),
            None => limit,
        };
        match plan.number_of(quota) {
            Some(number @ 1..) => limit.further_quota(number),
            _ => limit,
        }
    }

    fn of(&self, policy: &Policy, plan: &LimitPlan) -> Limit {
        let mut policy = policy.clone();
        if policy.may_fall_back() && !self.store.has_local_fallback() {
            // A memory store has no outages, and the layer does not accept `Local` without a
            // fallback. After a reload, the file may name a store that is only opened at the next
            // start.
            policy = policy.with_on_store_error(OnStoreError::Open).with_shed(OnStoreError::Open);
        }
        let found = || Found { identity: self.identity.clone(), whose: plan.whose };
        match plan.whose {
            Whose::Everybody => Limit::global(policy),
            Whose::Client => Limit::new(policy, found()),
            Whose::Group(level) => self.of_group(level, policy, found()),
        }
    }

    /// A request without a group skips the limit. The limit shares its headers by policy with the
    /// limit of clients.
    fn of_group(&self, level: usize, policy: Policy, group: Found) -> Limit {
        let level = self.plan.levels.get(level).map(|level| format!("/{}", level.name));
        let header = level.and_then(|end| policy.name().strip_suffix(&end).map(str::to_owned));
        let can_be_missing = group.can_be_missing();
        let limit = header.into_iter().fold(Limit::new(policy, group), Limit::header_name);
        if can_be_missing { limit.on_missing_key(OnMissingKey::Pass) } else { limit }
    }
}

struct Tiers {
    names: Box<[Tier]>,
    identity: Identity,
}

impl TierSource for Tiers {
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        self.names.get(tier_of(head)?).cloned()
    }

    fn named(&self, name: &SubjectName) -> Option<Tier> {
        self.names.get(self.identity.tier_of(name)?).cloned()
    }
}

fn tier_of(head: &RequestHead<'_>) -> Option<usize> {
    Facts::of(head)?.client.tier
}

/// The closure returns a cost for every request, so no default applies.
fn costs(plan: &LimitPlan) -> Costs {
    if let Some(settle) = plan.usage() {
        return Costs::from_fn(move |head: &RequestHead<'_>| {
            let call = Facts::of(head)?.call.as_ref()?;
            settle.cost_of(call.model(), &call.estimate())
        });
    }
    let table = Arc::clone(&plan.costs);
    Costs::from_fn(move |head| Some(table.of(head.method, head.uri.path())))
}

fn corrected(limit: Limit, plan: &LimitPlan) -> Limit {
    let limit = counting(limit, plan.counts.as_ref());
    match &plan.reserve {
        Some(plan) => {
            let reserve = Reserve::by_handler().lapse_after(plan.lapse);
            limit.reserve(match plan.settle {
                SettleBy::Header => reserve.or_by_header(headers::COST),
                // `settled.rs` reads the body and settles these.
                SettleBy::Trailer | SettleBy::Bytes(_) | SettleBy::Tokens | SettleBy::Money => {
                    reserve
                }
            })
        }
        None => limit,
    }
}

/// Counts only responses with these statuses, if there is a list. A request with an unknown outcome
/// also counts.
fn counting(limit: Limit, statuses: Option<&Vec<Statuses>>) -> Limit {
    let Some(statuses) = statuses.cloned() else { return limit };
    limit.count_only(move |response| {
        let answered = AnsweredBy::of(response.extensions);
        Statuses::any(&statuses, response.status)
            || answered.is_some_and(AnsweredBy::hides_an_outcome)
    })
}

pub(crate) fn identity_fields(plan: &Plan) -> Arc<[HeaderName]> {
    let of_clients = plan.identity.iter().filter_map(|source| match source {
        IdentitySource::ApiKey(ApiKeysPlan { header: ApiKeyHeader::Header(name), .. })
        | IdentitySource::Value(ValuePlan { parameter: Parameter::Header(name), .. }) => Some(name),
        _ => None,
    });
    let sources = plan.levels.iter().flat_map(|level| &level.sources);
    let of_groups = sources.filter_map(|source| match source {
        GroupSource::Header(ValuePlan { parameter: Parameter::Header(name), .. }) => Some(name),
        _ => None,
    });
    of_clients.chain(of_groups).cloned().collect()
}
