//! Serves requests with one version of the configuration. A reload replaces the entire app.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Once};
use std::time::Instant;

use http::uri::Scheme;
use http::{Request, Response, StatusCode};
use tollgate::access::{AccessLists, Listed};
use tollgate::denial::{Denial, Problem, ResponseFormat};
use tollgate::key::{KeyError, RequestHead};
use tollgate::layer::WaitQueue;
use tollgate::observe::{Inspect, LayerHandle, Observer};
use tollgate_config::plan::{Connections, Meeting, Plan, is_grpc};
use tollgate_proxy::path::RequestPath;
use tollgate_proxy::settings::Address;
use tower_layer::Layer;
use tower_service::Service;

use super::answers::answer_to;
use super::bodies;
use super::body::Body;
use super::decide::build::{self, Limiter, Preflight, ReadyRoute, RouteBuilder};
use super::decide::client_identity::Identity;
use super::decide::denials::answered_by;
use super::decide::facts::{Facts, head};
use super::decide::key_sets::{KeySet, KeySets};
use super::decide::lists;
use super::decide::llm::Llm;
use super::decide::proxies::{self, TrustedProxies};
use super::decide::settled::Prices;
use super::decide::tenants::{Prepared, Sources};
use super::decide::token_limit::{Addresses, TooManyRefused};
use super::edge::listener_settings::{ListenerKey, ListenerSettings};
use super::error::BuildError;
use super::fronts::decision_api::DecisionApi;
use super::fronts::rate_limits::RateLimits;
use super::operations::access_log::AccessLog;
use super::operations::summary::Summary;
use super::status::StatusPages;
use crate::trace::{self, Tracing};
use tollgate_proxy::{
    Admitted, Clients, Common, Failures, Fault, Forward, Patience, ReadBody, Tunnels, Via,
};

pub(super) struct App<St: Inspect> {
    pub(super) plan: Plan,
    pub(super) listeners: HashMap<ListenerKey, ListenerSettings>,
    routes: Vec<ReadyRoute<St>>,
    preflights: Option<Preflight<St>>,
    pub(super) status: StatusPages<St>,
    pub(super) identity: Identity,
    pub(super) proxies: TrustedProxies,
    clients: Clients,
    summary: Summary,
    pub(super) reserves: bool,
    lists: Option<AccessLists>,
    pub(super) rate_limits: Option<RateLimits<St>>,
    pub(super) decision_api: Option<DecisionApi<St>>,
    pub(super) admin_connections: usize,
    room: WaitQueue,
    llm: Llm,
    tenants: Prepared,
}

#[derive(Clone)]
pub(super) struct Persistent<St> {
    /// The store contains the counters, so they survive a reload.
    pub(super) store: St,
    pub(super) files: Option<u64>,
    pub(super) tunnels: Tunnels,
    pub(super) failures: Failures,
    pub(super) via: Via,
    pub(super) workers: usize,
    pub(super) observer: Observer,
    pub(super) summary: Summary,
    pub(super) key_sets: KeySets,
    pub(super) refused_tokens: Addresses,
    pub(super) tenants: Sources,
    pub(super) access_log: AccessLog,
    pub(super) tracing: Tracing,
}

impl<St: Inspect> App<St> {
    pub(super) fn new(
        plan: Plan,
        persistent: &Persistent<St>,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let Connections { clients: most, per_target, admin } =
            plan.connections(persistent.files)?;
        // The system's authorities may be missing if no target needs them.
        let targets = plan.routes.iter().filter_map(|route| route.target.as_ref());
        let mut targets = targets.filter(|target| target.tls.is_none());
        let is_tls = |address: &Address| address.endpoint.scheme == Scheme::HTTPS;
        let uses_tls = targets.any(|target| target.upstream.servers.addresses.iter().any(is_tls));
        let clients = match before.map(|app| app.clients.clone()) {
            Some(clients) => clients,
            None => Clients::new(uses_tls, per_target, persistent.workers)?,
        };
        if uses_tls {
            clients.allow_tls()?;
        }
        let identity =
            Identity::new(&plan, &persistent.key_sets, Some(&persistent.refused_tokens))?;
        let lists = lists::lists(&plan, &identity)?;
        let tenants = persistent.tenants.prepare(&plan)?;
        let proxies = TrustedProxies::of(&plan)?;
        let rate_limits = RateLimits::new(&plan, &persistent.store, &persistent.summary)?;
        // Requests of both versions share one wait queue, so they keep their order.
        let room = before.map_or_else(WaitQueue::new, |app| app.room.clone());
        let decision_api = plan
            .decision_api
            .as_ref()
            .map(|api| DecisionApi::new(api, &persistent.store, &persistent.observer, &room));
        let decision_api = decision_api.transpose()?;
        let common = Common {
            proxy_header: proxies::header(&plan),
            identity: build::identity_fields(&plan),
            clients: clients.clone(),
            idle: plan.timeouts.idle,
            tunnels: persistent.tunnels.at_most(plan.max_tunnels),
            failures: persistent.failures.clone(),
            via: persistent.via.clone(),
        };
        let builder = RouteBuilder {
            plan: &plan,
            store: &persistent.store,
            common: &common,
            identity: &identity,
            observer: &persistent.observer,
            room: &room,
            tenants: &tenants.numbers(),
        };
        let (routes, preflights) = (builder.routes()?, builder.preflights()?);
        let status = StatusPages::new(if plan.status_path.is_some() { &routes } else { &[] });
        let listeners = ListenerSettings::all(&plan, most)?;
        let (summary, reserves) = (persistent.summary.clone(), plan.reserves());
        // Last, because the earlier version keeps its own bounds if this version fails.
        let room = room.max_requests(plan.waiting.requests).max_bytes(plan.waiting.bytes);
        clients.bound(per_target);
        let admin_connections = admin;
        let llm = before.map_or_else(|| Llm::new(plan.timeouts.idle), |app| app.llm.clone());
        Ok(Self {
            plan,
            listeners,
            routes,
            preflights,
            status,
            identity,
            proxies,
            clients,
            summary,
            reserves,
            lists,
            rate_limits,
            decision_api,
            admin_connections,
            room,
            llm,
            tenants,
        })
    }

    pub(super) fn layers(&self) -> impl Iterator<Item = LayerHandle> {
        let preflights = self.preflights.iter().map(|it| it.limiter.layer.handle());
        let decision_api = self.decision_api.iter().map(DecisionApi::handle);
        self.routes.iter().flat_map(ReadyRoute::layers).chain(preflights).chain(decision_api)
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = (String, bool)> {
        self.routes.iter().filter_map(|route| route.forward.as_ref()).flat_map(Forward::servers)
    }

    pub(super) fn key_sets(&self) -> &[Arc<KeySet>] {
        &self.identity.key_sets
    }

    /// The tenants' numbers, to apply when this version starts to serve.
    pub(super) const fn tenants(&self) -> &Prepared {
        &self.tenants
    }

    pub(super) async fn key_sets_tried(&self) {
        for set in self.key_sets() {
            set.tried().await;
        }
    }

    pub(super) fn patience(&self) -> Patience {
        let timeouts = &self.plan.timeouts;
        Patience::new(timeouts.request_header, timeouts.keep_alive, timeouts.idle)
    }

    /// Decides one request: calls the service that `service` returns, or answers the request
    /// itself. If there is no service, the answer is the one for a missing route.
    ///
    /// The service must always be ready, because no layer waits for it.
    pub(super) async fn decide<'a, B, S>(
        &'a self,
        mut request: Request<Admitted<B>>,
        service: impl Fn(&'a ReadyRoute<St>, Option<&'a Prices>) -> Option<S> + Send,
    ) -> Response<Body>
    where
        B: ReadBody,
        S: Service<Request<Admitted<B>>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send,
        S::Future: Send,
    {
        let path = request.uri().path();
        if path == "*" {
            return no_content();
        }
        let route = match self.plan.route(request.body().host.as_ref(), path) {
            Ok(route) => route.and_then(|route| self.routes.get(route)),
            Err(fault) => return answer_to(fault.into()),
        };
        let Some(route) = route else { return answer_to(Fault::NoRoute) };
        trace::note_route(&route.plan.name);
        let began = Instant::now();
        let allowed = self.limiter(route, &request).and_then(|limited| {
            let inner = service(route, limited.as_ref().map(|limited| &limited.limiter.prices));
            Ok((limited, inner.ok_or_else(|| answer_to(Fault::NoRoute))?))
        });
        let answered = match allowed {
            Ok((Some(Limited { limiter, mut facts }), inner)) => {
                let read = match &limiter.llm {
                    None if limiter.reads_body => {
                        Box::pin(bodies::read_groups(
                            &self.identity,
                            &self.llm,
                            &mut request,
                            &mut facts,
                        ))
                        .await
                    }
                    None => Ok(()),
                    Some(plan) => {
                        Box::pin(bodies::read_call(
                            &self.llm,
                            self.plan.on_missing_key,
                            &mut request,
                            plan,
                            &mut facts,
                        ))
                        .await
                    }
                };
                match read {
                    Ok(()) => {
                        request.extensions_mut().insert(facts);
                        limiter.layer.layer(inner).call(request).await
                    }
                    Err(refused) => Ok(*refused),
                }
            }
            Ok((None, mut inner)) => inner.call(request).await,
            Err(refused) => Ok(*refused),
        };
        let response = answered.unwrap_or_else(|never| match never {});
        route.meter.answered(response.status(), began.elapsed());
        response
    }

    /// The limiter for a request, or `None` if the request is not limited.
    ///
    /// # Errors
    /// The response, if the request is rejected before any limiter.
    fn limiter<'a, B>(
        &'a self,
        route: &'a ReadyRoute<St>,
        request: &Request<Admitted<B>>,
    ) -> Result<Option<Limited<'a, St>>, Box<Response<Body>>> {
        let listed = self.listed(request)?;
        let (head, path) = (head(request), path(request));
        let limits = &route.plan.limits;
        let meeting = self.plan.meets(limits, listed, head.method, &path, head.is_preflight());
        match meeting.map_err(|fault| answer_to(fault.into()))? {
            Meeting::Blocked => Err(self.rejected(&Denial::denied_subject(), request)),
            Meeting::Unlimited(_) => Ok(None),
            // A preflight has no credentials, so only its address is known.
            Meeting::Preflight(_) => {
                let Some(preflights) = &self.preflights else { return Ok(None) };
                let facts = Facts::new(preflights.client(&head));
                Ok(Some(Limited { limiter: &preflights.limiter, facts }))
            }
            Meeting::Limits { api } => {
                let client = self.identity.find(&head);
                if let Some(refused) = client.too_many_refused() {
                    return Err(self.not_verified(refused, request));
                }
                if client.is_unknown() {
                    self.summary.unknown_client();
                }
                let facts = Facts::new(client);
                Ok(route.limiter(api).map(|limiter| Limited { limiter, facts }))
            }
        }
    }

    pub(super) fn listed<B>(
        &self,
        request: &Request<Admitted<B>>,
    ) -> Result<Listed, Box<Response<Body>>> {
        let Some(lists) = &self.lists else {
            return Ok(Listed::Neither);
        };
        lists.find(&head(request)).map_err(|error| {
            if let Some(refused) = TooManyRefused::of(&error) {
                return self.not_verified(refused, request);
            }
            if matches!(error, KeyError::Ambiguous) {
                return self.rejected(&Denial::ambiguous_key(), request);
            }
            // Every connection has a peer address, so this error is a bug.
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| tracing::error!(%error, "the lists cannot be checked"));
            self.rejected(&Denial::misconfigured(), request)
        })
    }

    /// The response to a request that is denied before any limiter.
    pub(super) fn rejected<B>(
        &self,
        denial: &Denial<'_>,
        request: &Request<B>,
    ) -> Box<Response<Body>> {
        tracing::debug!(reason = denial.reason().code(), "deny");
        let problem = Problem::with_members(self.plan.members.clone());
        let mut response = denial.respond(self.format(request), &problem).map(Body::from);
        response.extensions_mut().insert(answered_by(denial));
        Box::new(response)
    }

    pub(super) fn not_verified<B>(
        &self,
        refused: &TooManyRefused,
        request: &Request<Admitted<B>>,
    ) -> Box<Response<Body>> {
        self.summary.token_not_verified();
        Box::new(refused.response(self.format(request), &self.plan.members))
    }

    fn format<B>(&self, request: &Request<B>) -> ResponseFormat {
        let is_grpc = is_grpc(&self.plan.grpc, request.uri().path());
        ResponseFormat::of(&RequestHead::of(request), is_grpc)
    }
}

/// A request's limiter, and the facts that it reads.
struct Limited<'a, St> {
    limiter: &'a Limiter<St>,
    facts: Facts,
}

/// The path in both spellings, if the upstream receives another than the limits see.
fn path<B>(request: &Request<Admitted<B>>) -> RequestPath<'_> {
    let original = request.body().original.as_ref().map(|original| original.path().into());
    RequestPath { normal: request.uri().path().into(), original }
}

/// The answer to `OPTIONS *`, which works as a ping.
fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
