//! The builder of a layer.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "memory")]
use tollgate_core::Quota;
use tollgate_core::{Cost, OnStoreError, Policy, Store};
#[cfg(feature = "memory")]
use tollgate_memory::MemoryStore;

use super::checks::{LayerError, check};
use super::options::Options;
use super::service::RateLimitLayer;
use super::state::LayerState;
use super::wait_queue::WaitQueue;
use crate::denial::{Denial, DenialResponse, IntoDenialResponse, ResponseFromFn};
use crate::grpc::GrpcServices;
#[cfg(feature = "memory")]
use crate::key::ApiKeys;
use crate::tier::TierSource;
use crate::{Costs, HeaderOptions, Limit, OnExceeded, OnMissingKey, Paths, RequestHead};

/// Collects the limits and options of a [`RateLimitLayer`].
///
/// | option | default | reason |
/// |---|---|---|
/// | [`costs`](Self::costs) | each request costs 1 | a quota of 100 is then 100 requests |
/// | [`tiers`](Self::tiers) | required if a limit has tiers | only the program knows |
/// | [`exempt`](Self::exempt) | no request | an exemption should be explicit |
/// | [`exempt_preflights`](Self::exempt_preflights) | yes | to a page a denied preflight looks like a broken network |
/// | [`grpc`](Self::grpc), [`grpc_at`](Self::grpc_at) | no service is gRPC | a client can write any content type |
/// | [`on_missing_key`](Self::on_missing_key) | required if a key can be missing | no answer is right for all services |
/// | [`max_waiting`](Self::max_waiting), [`wait_queue`](Self::wait_queue) | 1024 requests, 64 MiB | each request holds a connection and memory |
/// | [`headers`](Self::headers) | two on allowed responses, all on denials | clients can stop in time |
/// | [`on_denied`](Self::on_denied) | a [problem body](crate::denial::Problem) | machines and people can read it |
/// | [`expose_verdicts`](Self::expose_verdicts) | off | it costs an allocation per request |
/// | `observer`, `endpoint` (feature `metrics`) | its own; the matched route | labels of [metrics] |
///
/// ```
/// use tollgate::headers::HeaderOptions;
/// use tollgate::key::ClientIp;
/// use tollgate::limit::Paths;
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let client = Policy::token_bucket("client", Quota::per_minute(100).burst(20))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .exempt_paths(Paths::new(["/healthz"])?)
///     .headers(HeaderOptions::all())
///     .limit(Limit::new(client, ClientIp::behind(["10.0.0.0/8"])?))
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [metrics]: https://docs.rs/tollgate/latest/tollgate/metrics
pub struct RateLimitLayerBuilder<St> {
    store: St,
    limits: Vec<Limit>,
    on_missing_key: Option<OnMissingKey>,
    options: Options,
}

impl<St: Store> RateLimitLayer<St> {
    /// A layer around a client of another service: each request costs 1 and waits for up to
    /// `max_wait` until the policy allows it. The responses get no rate limit headers.
    ///
    /// While the store cannot decide, requests get a 503 from the layer and are not sent, because the
    /// other service would see all replicas without a limit. Over a store with
    /// [`or_local`](crate::StoreExt::or_local), the local store decides instead. A policy with its own
    /// [`OnStoreError`] keeps it.
    ///
    /// `reqwest::Client` is a service for its own request type, and a layer needs `http::Request`. So
    /// put the layer around a service that calls `Client::execute`:
    ///
    /// ```text
    /// let send = tower::service_fn(move |request: http::Request<reqwest::Body>| {
    ///     let client = client.clone();
    ///     async move {
    ///         let response = client.execute(request.try_into()?).await?;
    ///         Ok::<_, reqwest::Error>(http::Response::<reqwest::Body>::from(response))
    ///     }
    /// });
    /// let limit = RateLimitLayer::for_client(MemoryStore::new(), policy, Duration::from_secs(30))?;
    /// let send = tower::ServiceBuilder::new().layer(limit.any_body()).service(send);
    /// ```
    ///
    /// # Errors
    /// As [`RateLimitLayerBuilder::build`].
    pub fn for_client(store: St, policy: Policy, max_wait: Duration) -> Result<Self, LayerError> {
        let mut limit = Limit::global(policy).on_exceeded(OnExceeded::Wait { max: max_wait });
        if !store.has_local_fallback() {
            limit.default_on_store_error(OnStoreError::Closed);
        }
        let none = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
        Self::builder(store).limit(limit).headers(none).build()
    }

    /// A layer of several limits and options, over `store`.
    pub fn builder(store: St) -> RateLimitLayerBuilder<St> {
        RateLimitLayerBuilder::new(store)
    }
}

#[cfg(feature = "memory")]
/// Short forms: a token bucket in memory, in which each request costs 1.
impl RateLimitLayer<MemoryStore> {
    /// Makes a layer with one quota that all clients share.
    ///
    /// # Errors
    /// The quota is not valid for a token bucket.
    pub fn global(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::global(Policy::token_bucket("global", quota)?))
    }

    /// Makes a layer with a quota for each client address: the peer of the connection, IPv6 by /64.
    /// With axum, enable the feature `axum` and serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// The quota is checked, so the result becomes a layer with `?`. Without it the compiler reports
    /// that `Result<RateLimitLayer<..>, LayerError>: Layer<Route>` is not satisfied:
    ///
    /// ```compile_fail
    /// # use axum::Router;
    /// # use tollgate::{Quota, RateLimitLayer};
    /// let app: Router = Router::new().layer(RateLimitLayer::per_ip(Quota::per_minute(20)));
    /// ```
    ///
    /// # Errors
    /// As [`global`](Self::global).
    pub fn per_ip(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::per_ip(Policy::token_bucket("client", quota)?))
    }

    /// Makes a layer with a quota for each of these API keys in `X-API-Key`. A request without one
    /// of them gets 403.
    ///
    /// # Errors
    /// As [`global`](Self::global).
    pub fn per_api_key(quota: Quota, keys: ApiKeys) -> Result<Self, LayerError> {
        Self::alone(Limit::per_api_key(Policy::token_bucket("api-key", quota)?, keys))
    }

    fn alone(limit: Limit) -> Result<Self, LayerError> {
        Self::builder(MemoryStore::new()).limit(limit).build()
    }
}

/// Passing a builder to `.layer(..)` is a compile error that names the cure.
///
/// ```compile_fail
/// use tollgate::{MemoryStore, RateLimitLayer};
/// use tower::Layer;
///
/// let builder = RateLimitLayer::builder(MemoryStore::new());
/// builder.layer(()); // a `RateLimitLayerBuilder` is not a layer yet: call `.build()?` first
/// ```
impl<S, St: Built> tower_layer::Layer<S> for RateLimitLayerBuilder<St> {
    type Service = Infallible;

    fn layer(&self, _: S) -> Infallible {
        match self.store.unbuilt() {}
    }
}

/// No type implements it.
#[diagnostic::on_unimplemented(
    message = "a `RateLimitLayerBuilder` is not a layer yet: call `.build()?` first",
    label = "this is a builder"
)]
pub trait Built {
    /// Cannot be called.
    fn unbuilt(&self) -> Infallible;
}

impl<St: Store> RateLimitLayerBuilder<St> {
    pub(super) fn new(store: St) -> Self {
        let (limits, options) = (Vec::new(), Options::default());
        Self { store, limits, on_missing_key: None, options }
    }

    /// Adds a limit. The headers name limits in this order; decisions do not depend on it.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets the costs for limits without their own costs. By default each request costs 1;
    /// [`Costs::by_method`] makes writes more expensive.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.options.costs = costs;
        self
    }

    /// Short for `.costs(Costs::flat(units))`.
    #[must_use]
    pub fn cost(self, units: impl Into<Cost>) -> Self {
        self.costs(Costs::flat(units))
    }

    /// Sets the source of tiers, for limits with [`in_tier`](Limit::in_tier).
    #[must_use]
    pub fn tiers(mut self, source: impl TierSource) -> Self {
        self.options.tiers = Some(Arc::new(source));
        self
    }

    /// Sets [`WaitQueue::max_requests`] of the layer's wait queue, also for other layers that share
    /// the queue.
    #[must_use]
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.options.queue = self.options.queue.max_requests(requests);
        self
    }

    /// Sets the wait queue for limits with [`OnExceeded::Wait`]. Several layers can share a queue. An
    /// earlier [`max_waiting`](Self::max_waiting) has no effect on it.
    #[must_use]
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.options.queue = queue.clone();
        self
    }

    /// Forwards requests for which `condition` returns `true` without calling the store.
    #[must_use]
    pub fn exempt(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.exempt.push(Arc::new(condition));
        self
    }

    /// Forwards requests to these paths, for example `/healthz`, without calling the store.
    #[must_use]
    pub fn exempt_paths(self, paths: Paths) -> Self {
        self.exempt(move |head| paths.surely_contains(head.uri.path()))
    }

    /// Whether [CORS preflights](RequestHead::is_preflight) pass without calling the store.
    ///
    /// A client can send any number of preflights. A CORS layer outside of this layer answers them, so
    /// they never arrive here. Without such a layer, set this to `false` if your service accepts no
    /// requests of other sites: preflights then have the cost of OPTIONS.
    #[must_use]
    pub fn exempt_preflights(mut self, exempt: bool) -> Self {
        self.options.exempt_preflights = exempt;
        self
    }

    /// Declares that all services inside are gRPC, or none (the default).
    ///
    /// The denial of a gRPC call is a gRPC status with the HTTP status 200, and with
    /// [`Costs::by_method`] a call costs 1. Requests cannot decide this, because a client can write
    /// any content type and would get the lower cost. In a declared service a call is a POST with
    /// the content type of gRPC. Clients of gRPC-Web read the HTTP status, so they get HTTP.
    ///
    /// Without the declaration, a gRPC client reads a denial as UNAVAILABLE.
    #[must_use]
    pub fn grpc(mut self, all: bool) -> Self {
        self.options.grpc = GrpcServices::all(all);
        self
    }

    /// Declares that the services at these paths are gRPC, for example `/pkg.Greeter/*`, in a router
    /// that also has other services. Otherwise equal to [`grpc`](Self::grpc), which it replaces.
    #[must_use]
    pub fn grpc_at(mut self, paths: Paths) -> Self {
        self.options.grpc = GrpcServices::at(paths);
        self
    }

    /// Declares that the services of requests for which `condition` returns `true` are gRPC. The
    /// condition must not read headers, because the client writes them. Otherwise equal to
    /// [`grpc`](Self::grpc), which it replaces.
    #[must_use]
    pub fn grpc_if(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.grpc = GrpcServices::If(Arc::new(condition));
        self
    }

    /// Sets [`Limit::on_missing_key`] for limits whose key can be missing and that do not set it.
    #[must_use]
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Sets the headers of responses.
    #[must_use]
    pub fn headers(mut self, headers: HeaderOptions) -> Self {
        self.options.headers = headers;
        self
    }

    /// Sets the response of a denial: a text or a `Response<Bytes>`, or with the feature `axum` any
    /// `IntoResponse`. The layer adds the headers. gRPC calls get their status as before.
    ///
    /// A response with status 200 gets the [status of the denial](Denial::status). To send 200, pass a
    /// [`DenialResponse`] to [`denial_response`](Self::denial_response).
    ///
    /// ```
    /// # use tollgate::{MemoryStore, RateLimitLayer};
    /// use serde_json::json;
    ///
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let text = builder.on_denied(|denial| denial.detail().into_owned());
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let json = builder.on_denied(|denial| {
    ///     let path = denial.request().map(|head| head.uri.path());
    ///     denial.json(&json!({"error": "slow down", "path": path, "wait": denial.retry_after_secs()}))
    /// });
    /// # let _ = (text, json);
    /// ```
    #[must_use]
    pub fn on_denied<F, R, Via>(self, response: F) -> Self
    where
        F: Fn(&Denial<'_>) -> R + Send + Sync + 'static,
        R: IntoDenialResponse<Via>,
        Via: 'static,
    {
        self.denial_response(ResponseFromFn(response, PhantomData))
    }

    /// Sets the response of a denial, also to gRPC calls: a [`Problem`](crate::denial::Problem) with
    /// more members, or a [`DenialResponse`] of your own.
    #[must_use]
    pub fn denial_response(mut self, response: impl DenialResponse) -> Self {
        self.options.response = Arc::new(response);
        self
    }

    /// Puts the decisions into the extensions of each request and response, as
    /// [`Verdicts`](super::Verdicts), for handlers and outer layers to read.
    #[must_use]
    pub fn expose_verdicts(mut self, expose: bool) -> Self {
        self.options.expose_verdicts = expose;
        self
    }

    /// Sets the observer of all decisions. Layers with clones of one observer count policies of one
    /// name together.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn observer(mut self, observer: &crate::observe::Observer) -> Self {
        self.options.observed.observer = Some(observer.clone());
        self
    }

    /// Sets the label `endpoint` of all requests in metrics. By default it is the pattern of the
    /// matched route, or `other`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.options.observed.endpoint = Some(endpoint.into());
        self
    }

    /// Checks the limits and options and builds the layer.
    ///
    /// # Errors
    /// See [`LayerError`].
    pub fn build(self) -> Result<RateLimitLayer<St>, LayerError> {
        let Self { store, mut limits, on_missing_key, options } = self;
        for limit in limits.iter_mut().filter(|limit| limit.key.can_be_missing()) {
            limit.on_missing_key = limit.on_missing_key.or(on_missing_key);
        }
        check(&mut limits, &store, &options)?;
        Ok(RateLimitLayer::new(LayerState::new(store, limits, options)))
    }
}

debug_fields!([St] RateLimitLayerBuilder<St>, limits, options);
