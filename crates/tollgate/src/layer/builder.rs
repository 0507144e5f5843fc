//! The layer's builder.

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
use super::state::compile;
use super::wait_queue::WaitQueue;
use crate::access::AccessLists;
use crate::denial::{Denial, DenialResponse, IntoDenialResponse, ResponseFromFn};
use crate::grpc::GrpcServices;
#[cfg(feature = "memory")]
use crate::key::ApiKeys;
use crate::tier::TierSource;
use crate::{Costs, HeaderOptions, Limit, Mode, OnMissingKey, Paths, RequestHead};

/// Collects the limits and options of a [`RateLimitLayer`].
///
/// | option | default | reason |
/// |---|---|---|
/// | [`costs`](Self::costs) | each request costs 1 | a quota of 100 then means 100 requests |
/// | [`tiers`](Self::tiers) | required if a limit has tiers | only the program can determine a client's tier |
/// | [`access_lists`](Self::access_lists) | none | most services have no lists |
/// | [`exempt`](Self::exempt) | no request | an exemption should be explicit |
/// | [`exempt_preflights`](Self::exempt_preflights) | yes | to a page, a denied preflight looks like a network failure |
/// | [`grpc`](Self::grpc), [`grpc_at`](Self::grpc_at) | no service is gRPC | a client can send any content type |
/// | [`on_missing_key`](Self::on_missing_key) | required if a key can be missing | no default suits every service |
/// | [`max_waiting`](Self::max_waiting), [`wait_queue`](Self::wait_queue) | 1024 requests, 64 MiB | each waiting request holds a connection and memory |
/// | [`headers`](Self::headers) | two on allowed responses, all on denials | clients can slow down before they are denied |
/// | [`on_denied`](Self::on_denied) | a [problem body](crate::denial::Problem) | machines and people can read it |
/// | [`expose_verdicts`](Self::expose_verdicts) | off | it costs one allocation per request |
/// | `observer`, `endpoint` (feature `metrics`) | its own; the matched route | labels of [metrics] |
///
/// The layer's `handle`, for the admin router and reports, also needs the feature `metrics`.
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
/// [metrics]: https://docs.rs/tollgate/latest/tollgate/observe
#[must_use]
pub struct RateLimitLayerBuilder<St> {
    store: St,
    limits: Vec<Limit>,
    on_missing_key: Option<OnMissingKey>,
    options: Options,
}

impl<St: Store> RateLimitLayer<St> {
    /// Makes a layer around a client for another service: each request costs 1 and waits for up to
    /// `max_wait` until the policy allows it. The responses get no rate limit headers, but the
    /// layer's own responses have an [`OwnDenial`](crate::denial::OwnDenial) in their extensions.
    ///
    /// With a policy that [queues](Policy::with_queue), requests wait in the store's order over all
    /// processes, and only as many as leave within `max_wait`. Otherwise they wait in this process,
    /// within the bounds of [`WaitQueue`]. [`PoliteLayer`](crate::limiter::PoliteLayer) also learns
    /// from responses.
    ///
    /// While the store cannot decide, the layer responds with 503 and does not send the requests,
    /// because the other service would otherwise receive unlimited requests from all replicas. If
    /// the store has a local fallback ([`or_local`](crate::StoreExt::or_local)), the local store
    /// decides instead. A policy that sets its own [`OnStoreError`] follows it.
    ///
    /// `reqwest::Client` is a service for its own request type, but a layer needs `http::Request`.
    /// So put the layer around a service that calls `Client::execute`:
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
    /// The same as for [`RateLimitLayerBuilder::build`].
    pub fn for_client(store: St, policy: Policy, max_wait: Duration) -> Result<Self, LayerError> {
        let mut limit = match policy.max_queue_time() {
            Some(max) => Limit::global(policy.with_queue(Duration::from(max).min(max_wait))?),
            None => Limit::global(policy).mode(Mode::Wait(max_wait)),
        };
        if !store.has_local_fallback() {
            limit.default_on_store_error(OnStoreError::Closed);
        }
        let no_headers = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
        Self::builder(store).limit(limit).headers(no_headers).mark_denials(true).build()
    }

    /// Creates a builder for a layer with any limits and options, over `store`.
    pub fn builder(store: St) -> RateLimitLayerBuilder<St> {
        RateLimitLayerBuilder::new(store)
    }
}

#[cfg(feature = "memory")]
/// Short forms: an in-memory token bucket, in which each request costs 1.
impl RateLimitLayer<MemoryStore> {
    /// Makes a layer with a single quota that all clients share.
    ///
    /// # Errors
    /// The quota is not valid for a token bucket.
    pub fn global(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::global(Policy::token_bucket("global", quota)?))
    }

    /// Makes a layer with a quota for each client address: the connection's peer, IPv6 by /64. With
    /// axum, enable the feature `axum` and serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// The quota is validated, so this returns a `Result`: add `?`. Otherwise the compiler reports
    /// that `Result<RateLimitLayer<..>, LayerError>: Layer<Route>` is not satisfied:
    ///
    /// ```compile_fail
    /// # use axum::Router;
    /// # use tollgate::{Quota, RateLimitLayer};
    /// let app: Router = Router::new().layer(RateLimitLayer::per_ip(Quota::per_minute(20)));
    /// ```
    ///
    /// # Errors
    /// The same as for [`global`](Self::global).
    pub fn per_ip(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::per_ip(Policy::token_bucket("client", quota)?))
    }

    /// Makes a layer with a quota for each of these API keys, which clients send in `X-API-Key`. A
    /// request without a valid key gets 403.
    ///
    /// # Errors
    /// The same as for [`global`](Self::global).
    pub fn per_api_key(quota: Quota, keys: ApiKeys) -> Result<Self, LayerError> {
        Self::alone(Limit::per_api_key(Policy::token_bucket("api-key", quota)?, keys))
    }

    fn alone(limit: Limit) -> Result<Self, LayerError> {
        Self::builder(MemoryStore::new()).limit(limit).build()
    }
}

impl<St: Store> RateLimitLayerBuilder<St> {
    pub(super) fn new(store: St) -> Self {
        let (limits, options) = (Vec::new(), Options::default());
        Self { store, limits, on_missing_key: None, options }
    }

    /// Adds a limit. The headers list limits in the order in which they were added. Decisions do
    /// not depend on it.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Sets the costs for limits that do not set their own. By default each request costs 1;
    /// [`Costs::by_method`] makes writes more expensive.
    pub fn costs(mut self, costs: Costs) -> Self {
        self.options.costs = costs;
        self
    }

    /// Shorthand for `.costs(Costs::flat(units))`.
    pub fn cost(self, units: impl Into<Cost>) -> Self {
        self.costs(Costs::flat(units))
    }

    /// Sets the source of tiers, for limits with [`in_tier`](Limit::in_tier).
    pub fn tiers(mut self, source: impl TierSource) -> Self {
        self.options.tiers = Some(Arc::new(source));
        self
    }

    /// Sets [`WaitQueue::max_requests`] on the layer's wait queue. This also affects other layers
    /// that share the queue.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.options.queue = self.options.queue.max_requests(requests);
        self
    }

    /// Sets the wait queue for limits with [`Mode::Wait`]. Several layers can share a queue.
    /// An earlier [`max_waiting`](Self::max_waiting) does not apply to it.
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.options.queue = queue.clone();
        self
    }

    /// Forbids clients on the blocklist with 403 ([`Reason::DeniedSubject`](crate::denial::Reason)),
    /// and forwards requests from clients on the allowlist without calling the store.
    ///
    /// To apply the lists to more routes than the limits, add another layer outside, which needs no
    /// limit. Give the inner layer the lists as well, so its limits do not apply to the allowlist.
    pub fn access_lists(mut self, lists: &AccessLists) -> Self {
        self.options.access = Some(lists.clone());
        self
    }

    /// Forwards requests for which `condition` returns `true`, without calling the store.
    pub fn exempt(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.exempt.push(Arc::new(condition));
        self
    }

    /// Forwards requests to these paths, for example `/healthz`, without calling the store.
    pub fn exempt_paths(self, paths: Paths) -> Self {
        self.exempt(move |head| paths.surely_contains(head.uri.path()))
    }

    /// Sets whether to forward [CORS preflights](RequestHead::is_preflight) without calling the
    /// store.
    ///
    /// A client can send any number of preflights. They only arrive here if no CORS layer outside
    /// of this layer answers them. Without such a layer, set this to `false` if your service
    /// accepts no requests from other sites: preflights then cost as much as other OPTIONS
    /// requests.
    pub fn exempt_preflights(mut self, exempt: bool) -> Self {
        self.options.exempt_preflights = exempt;
        self
    }

    /// Sets whether all inner services are gRPC. Default: `false`, no inner service is gRPC.
    ///
    /// The denial of a gRPC call is a gRPC status with the HTTP status 200, and with
    /// [`Costs::by_method`] a call costs 1. The layer cannot detect gRPC from the request, because
    /// a client can send any content type and would get the lower cost. In a declared service, a
    /// call is a POST with a gRPC content type. gRPC-Web clients read the HTTP status, so they get
    /// HTTP responses.
    ///
    /// If the service is not declared, a gRPC client interprets a denial as UNAVAILABLE.
    pub fn grpc(mut self, all: bool) -> Self {
        self.options.grpc = GrpcServices::all(all);
        self
    }

    /// Declares that the services at these paths are gRPC, for example `/pkg.Greeter/*`, in a
    /// router that also contains other services. Otherwise it is the same as [`grpc`](Self::grpc),
    /// which it replaces.
    pub fn grpc_at(mut self, paths: Paths) -> Self {
        self.options.grpc = GrpcServices::at(paths);
        self
    }

    /// Declares that requests for which `condition` returns `true` go to gRPC services. The
    /// condition must not read headers, because the client controls them. Otherwise it is the same
    /// as [`grpc`](Self::grpc), which it replaces.
    pub fn grpc_if(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.grpc = GrpcServices::If(Arc::new(condition));
        self
    }

    /// Sets a default for [`Limit::on_missing_key`], for limits that need it and do not set it.
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Sets which headers responses get.
    pub fn headers(mut self, headers: HeaderOptions) -> Self {
        self.options.headers = headers;
        self
    }

    /// Sets the response to a denied request: text or a `Response<Bytes>`, or with the feature
    /// `axum` any `IntoResponse`. The layer adds the headers. gRPC calls still get a gRPC status.
    ///
    /// A response with status 200 gets the [denial's status](Denial::status). To send 200, pass a
    /// [`DenialResponse`] to [`denial_response`](Self::denial_response).
    ///
    /// ```
    /// # use tollgate::{MemoryStore, RateLimitLayer};
    /// use serde_json::json;
    ///
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let text = builder.on_denied(|denial| denial.detail());
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let json = builder.on_denied(|denial| {
    ///     let path = denial.request().map(|head| head.uri.path());
    ///     denial.json(&json!({"error": "slow down", "path": path, "wait": denial.retry_after_secs()}))
    /// });
    /// # let _ = (text, json);
    /// ```
    pub fn on_denied<F, R, Via>(self, response: F) -> Self
    where
        F: Fn(&Denial<'_>) -> R + Send + Sync + 'static,
        R: IntoDenialResponse<Via>,
        Via: 'static,
    {
        self.denial_response(ResponseFromFn(response, PhantomData))
    }

    /// Sets the response to a denied request, including gRPC calls: a
    /// [`Problem`](crate::denial::Problem) with more members, or your own [`DenialResponse`].
    pub fn denial_response(mut self, response: impl DenialResponse) -> Self {
        self.options.response = Arc::new(response);
        self
    }

    /// Stores the decisions as [`Verdicts`](super::Verdicts) in the extensions of each request and
    /// response, for handlers and outer layers.
    pub fn expose_verdicts(mut self, expose: bool) -> Self {
        self.options.expose_verdicts = expose;
        self
    }

    /// Stores an [`OwnDenial`](crate::denial::OwnDenial) in the extensions of the layer's own
    /// responses. Around a client, they cannot be mistaken for the service's denials then.
    /// [`for_client`](RateLimitLayer::for_client) enables it.
    pub fn mark_denials(mut self, mark: bool) -> Self {
        self.options.marks_denials = mark;
        self
    }

    /// Sets the observer for all decisions. If layers share an observer, policies with the same
    /// name are counted together.
    #[cfg(feature = "metrics")]
    pub fn observer(mut self, observer: &crate::observe::Observer) -> Self {
        self.options.observed.observer = Some(observer.clone());
        self
    }

    /// Sets the `endpoint` label for all requests in metrics. By default it is the matched route's
    /// pattern, or `other`.
    #[cfg(feature = "metrics")]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.options.observed.endpoint = Some(endpoint.into());
        self
    }

    /// Checks the limits and options, and builds the layer.
    ///
    /// # Errors
    /// See [`LayerError`].
    pub fn build(self) -> Result<RateLimitLayer<St>, LayerError> {
        let Self { store, mut limits, on_missing_key, options } = self;
        for limit in limits.iter_mut().filter(|limit| limit.key.can_be_missing()) {
            limit.on_missing_key = limit.on_missing_key.or(on_missing_key);
        }
        check(&mut limits, &store, &options)?;
        Ok(RateLimitLayer::new(compile(store, limits, options)))
    }
}

debug_fields!([St] RateLimitLayerBuilder<St>, limits, options);
