//! What serves requests, made of one version of the configuration and swapped as a whole.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Instant;

use http::header::{CONNECTION, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio_rustls::rustls::ServerConfig;
use tollgate::access::{AccessLists, Listed};
use tollgate::denial::{Problem, ResponseFormat};
use tollgate::key::TrustedProxies;
use tollgate::status::{Inspect, LayerHandle};
use tollgate::{Denial, Observer, RequestHead, WaitQueue, headers};
use tower_layer::Layer;
use tower_service::Service;

use super::access_log::AccessLog;
use super::activity::Patience;
use super::build::{self, Parts, ReadyRoute};
use super::client_identity::Identity;
use super::denials::Denied;
use super::error::BuildError;
use super::keys::{KeySet, KeySets};
use super::lists;
use super::rate_limits::RateLimits;
use super::settled::{Prices, Settled};
use super::summary::Summary;
use crate::files;
use crate::plan::{Connections, Front, Plan};
use crate::proxy::path::Ambiguous;
use crate::proxy::{
    Address, Admitted, Body, Clients, Common, Connection, Failures, Fault, Meaning, Received,
    Timeouts, Tunnels, Via, admit,
};
use crate::trace::{self, Tracing};

/// One version of the configuration at work.
pub(super) struct App<St> {
    pub(super) plan: Plan,
    /// The listeners' treatment of connections.
    pub(super) listeners: HashMap<ListenerKey, ListenerSettings>,
    routes: Vec<ReadyRoute<St>>,
    identity: Identity,
    clients: Clients,
    summary: Summary,
    /// Whether upstreams say somewhere what a request has cost.
    reserves: bool,
    /// Who is refused, and who is not limited.
    lists: Option<AccessLists>,
    /// The rules for descriptors of Envoy.
    pub(super) rate_limits: Option<RateLimits<St>>,
    /// The most connections to the admin address.
    pub(super) admin_connections: usize,
    /// Where requests wait, of all routes together.
    room: WaitQueue,
}

/// A listener: its address in the file, which may leave the port to the system.
pub(super) type ListenerKey = (SocketAddr, Front);

/// What a listener does with a connection before the first request.
#[derive(Clone, Debug)]
pub(super) struct ListenerSettings {
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) proxy_protocol: Option<TrustedProxies>,
    /// The most connections.
    pub(super) most: usize,
    /// The most connections of one address.
    pub(super) most_per_address: usize,
    /// The answers that it gives.
    pub(super) front: Front,
}

/// What outlives every version of the configuration.
#[derive(Clone)]
pub(super) struct Persistent<St> {
    /// Counters live here, which is why they survive a reload.
    pub(super) store: St,
    /// The most files that this process may open, if there is a bound.
    pub(super) files: Option<u64>,
    /// The same store, without its local fallback.
    pub(super) without_local: St,
    pub(super) tunnels: Tunnels,
    /// Failures of upstreams in the log.
    pub(super) failures: Failures,
    /// What stands in `Via`.
    pub(super) via: Via,
    /// How many threads serve requests.
    pub(super) workers: usize,
    /// What has been decided under each policy, which goes on after a reload.
    pub(super) observer: Observer,
    /// What the log says of that.
    pub(super) summary: Summary,
    /// Keys of tokens, which a reload does not fetch anew.
    pub(super) key_sets: KeySets,
    /// A line for each request.
    pub(super) access_log: AccessLog,
    /// What is added to the traces of requests.
    pub(super) tracing: Tracing,
}

impl<St: Inspect> App<St> {
    /// Puts a plan to work. Connections to upstreams are taken over from the version
    /// `before`, where nothing about them has changed.
    pub(super) fn new(
        plan: Plan,
        persistent: &Persistent<St>,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let Connections { clients: most, per_target, admin } =
            plan.connections(persistent.files).map_err(|error| BuildError(error.to_string()))?;
        let timeouts = timeouts(&plan);
        let mut targets = plan.routes.iter().filter_map(|route| route.target.as_ref());
        let is_tls = |address: &Address| address.endpoint.scheme == Scheme::HTTPS;
        let uses_tls = targets.any(|target| target.servers.addresses.iter().any(is_tls));
        let kept = before.map(|app| &app.clients);
        let kept = kept.filter(|clients| clients.fit(timeouts, uses_tls, per_target));
        let clients = match kept {
            Some(clients) => clients.clone(),
            None => Clients::new(timeouts, uses_tls, per_target, persistent.workers)
                .map_err(|error| BuildError(error.to_string()))?,
        };
        let identity = Identity::new(&plan, &persistent.key_sets)?;
        let lists = lists::lists(&plan, &identity)?;
        let rate_limits = RateLimits::new(&plan, persistent)?;
        // Requests of both versions wait in one order.
        let room = before.map_or_else(WaitQueue::new, |app| app.room.clone());
        let common = Common {
            trusted_proxies: build::trusted_proxies(&plan),
            identity: build::identity_fields(&plan),
            clients: clients.clone(),
            tunnels: persistent.tunnels.at_most(plan.max_tunnels),
            failures: persistent.failures.clone(),
            via: persistent.via.clone(),
        };
        let parts = Parts {
            plan: &plan,
            store: &persistent.store,
            without_local: &persistent.without_local,
            common: &common,
            identity: &identity,
            observer: &persistent.observer,
            room: &room,
        };
        let routes = parts.routes()?;
        let mut listeners = HashMap::new();
        for (listen, most) in plan.listen.iter().zip(most) {
            // At every reload, so that a renewed certificate is served from the next connection on.
            let tls = listen.tls.as_ref().map(files::tls).transpose()?;
            let proxy_protocol = listen.proxy_protocol.clone();
            let most_per_address = listen.max_connections_per_address;
            let most_per_address = most_per_address.unwrap_or_else(|| (most / 4).max(16));
            let front = listen.front;
            let settings = ListenerSettings { tls, proxy_protocol, most, most_per_address, front };
            listeners.insert((listen.addr, front), settings);
        }
        let (summary, reserves) = (persistent.summary.clone(), plan.reserves());
        // Last: if this version fails, the version before goes on with its own bounds.
        let (requests, bytes) = plan.waiting;
        let room = room.max_requests(requests).max_bytes(bytes);
        let admin_connections = admin;
        Ok(Self {
            plan,
            listeners,
            routes,
            identity,
            clients,
            summary,
            reserves,
            lists,
            rate_limits,
            admin_connections,
            room,
        })
    }

    /// All layers, to look at.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerHandle> {
        self.routes.iter().flat_map(ReadyRoute::layers)
    }

    /// The key sets that are fetched for it.
    pub(super) fn key_sets(&self) -> &[Arc<KeySet>] {
        &self.identity.key_sets
    }

    /// Completes when each of its key sets has been asked for once, well or not.
    pub(super) async fn key_sets_tried(&self) {
        for set in self.key_sets() {
            set.tried().await;
        }
    }

    /// How long a connection of a client may do nothing.
    pub(super) fn patience(&self) -> Patience {
        let timeouts = &self.plan.timeouts;
        Patience {
            head: timeouts.request_header,
            keep_alive: timeouts.keep_alive,
            // An upstream that is silent is given up after one such time, so that who is
            // silent for two is a client that does not read.
            stall: 2 * timeouts.idle,
        }
    }

    /// Answers one request: forwards it if the limits admit it. `received` says when the whole body
    /// has come.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        received: Option<Received>,
    ) -> Response<Body> {
        let mut answer = self
            .decide(request, connection, received, |route, prices| {
                Some(Settled::new(route.forward.clone()?, prices.cloned()))
            })
            .await;
        if self.reserves {
            // It is between the upstream and us, also where this request reserved nothing. A
            // gateway that reserves nothing anywhere leaves it to one further out.
            answer.headers_mut().remove(headers::COST);
            answer = answer.map(|body| body.without_trailer(headers::COST));
        }
        answer
    }

    /// Decides one request: calls the service that `admitted` makes, or answers for it. Where
    /// `admitted` makes none, the answer is that of a request without a route.
    ///
    /// The service has to be ready at all times: nothing between here and it waits.
    pub(super) async fn decide<B, S>(
        &self,
        mut request: Request<B>,
        connection: &Arc<Connection>,
        received: Option<Received>,
        admitted: impl Fn(&ReadyRoute<St>, Option<&Prices>) -> Option<S> + Send,
    ) -> Response<Body>
    where
        B: Send,
        S: Service<Request<Admitted<B>>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send,
        S::Future: Send,
    {
        let ambiguous =
            if self.plan.paths.reject_ambiguous { Ambiguous::Refuse } else { Ambiguous::Keep };
        let Meaning { host, upgrade } = match admit(&mut request, ambiguous) {
            Ok(meaning) => meaning,
            Err(fault) => return refuse(fault, request.version()),
        };
        let path = request.uri().path();
        if path == "*" {
            return nothing();
        }
        let route = match self.plan.route(host.as_ref(), path) {
            Ok(route) => route.and_then(|route| self.routes.get(route)),
            Err(fault) => return Fault::from(fault).response(),
        };
        let Some(route) = route else { return Fault::NoRoute.response() };
        trace::note_route(&route.plan.name);
        let began = Instant::now();
        let request = request.map(|body| Admitted {
            body,
            received,
            connection: Arc::clone(connection),
            host,
            upgrade,
        });
        let response = self.limited(route, request, admitted).await;
        route.meter.answered(response.status(), began.elapsed());
        response
    }

    /// Decides one request that takes `route`.
    async fn limited<B, S>(
        &self,
        route: &ReadyRoute<St>,
        mut request: Request<Admitted<B>>,
        admitted: impl Fn(&ReadyRoute<St>, Option<&Prices>) -> Option<S> + Send,
    ) -> Response<Body>
    where
        B: Send,
        S: Service<Request<Admitted<B>>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send,
        S::Future: Send,
    {
        let listed = match self.listed(&request) {
            Ok(listed) => listed,
            Err(refused) => return *refused,
        };
        let path = request.uri().path();
        let limiter = if listed == Listed::Allowed || self.plan.is_exempt(path) {
            None
        } else {
            let limiter = match route.limiter(request.method(), path) {
                Ok(limiter) => limiter,
                Err(fault) => return Fault::from(fault).response(),
            };
            if limiter.is_some() {
                let client = self.identity.find(&head(&request));
                if client.is_nobody() {
                    self.summary.nobody();
                }
                request.extensions_mut().insert(client);
            }
            limiter
        };
        let Some(mut inner) = admitted(route, limiter.map(|limiter| &limiter.prices)) else {
            return Fault::NoRoute.response();
        };
        let answered = match limiter {
            Some(limiter) => limiter.layer.layer(inner).call(request).await,
            None => inner.call(request).await,
        };
        answered.unwrap_or_else(|never| match never {})
    }

    /// What the lists say of a request, or the answer to it where that is all.
    fn listed<B>(&self, request: &Request<Admitted<B>>) -> Result<Listed, Box<Response<Body>>> {
        let Some(lists) = &self.lists else {
            return Ok(Listed::Neither);
        };
        let denial = match lists.find(&head(request)) {
            Ok(Listed::Blocked) => Denial::denied_subject(),
            Ok(listed) => return Ok(listed),
            Err(error) => {
                // Every connection has a peer address, so that this does not happen.
                static LOGGED: Once = Once::new();
                LOGGED.call_once(|| tracing::error!(%error, "cannot tell who is listed"));
                Denial::misconfigured()
            }
        };
        tracing::debug!(reason = denial.reason().code(), "deny");
        let format = ResponseFormat::of(&RequestHead::of(request));
        let problem = Problem::with_members(self.plan.members.clone());
        let mut response = denial.respond(format, &problem).map(Body::from);
        response.extensions_mut().insert(Denied::of(&denial));
        Err(Box::new(response))
    }
}

/// The head for limiters, with the peer of the connection.
fn head<B>(request: &Request<Admitted<B>>) -> RequestHead<'_> {
    let mut head = RequestHead::of(request);
    head.extensions = &request.body().connection.extensions;
    head
}

/// Where it is not clear for whom a request is or where it ends, whatever follows on the
/// connection is not clear either.
fn refuse(fault: Fault, version: Version) -> Response<Body> {
    let mut response = fault.response();
    let is_unclear = matches!(fault, Fault::Host | Fault::Framing | Fault::Coding | Fault::Upgrade);
    if version <= Version::HTTP_11 && is_unclear {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The answer to OPTIONS of the whole server, which asks whether it is there.
fn nothing() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn timeouts(plan: &Plan) -> Timeouts {
    Timeouts {
        connect: plan.timeouts.connect,
        response: plan.timeouts.response,
        body: plan.timeouts.idle,
        tunnel: plan.timeouts.tunnel,
        pool: plan.timeouts.pool,
    }
}
