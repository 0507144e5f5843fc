//! The builder of a layer, and its checks.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "memory")]
use tollgate_core::Quota;
use tollgate_core::{Cost, OnStoreError, Policy, PolicyError, Store};
#[cfg(feature = "memory")]
use tollgate_memory::MemoryStore;

use super::limits::{MAX_TIERS, tier_names};
use super::options::Options;
use super::service::RateLimitLayer;
use super::state::LayerState;
use super::wait_queue::WaitQueue;
use crate::denial::{Denial, DenialResponse, FromFn, IntoDenialResponse};
#[cfg(feature = "memory")]
use crate::key::ApiKeys;
use crate::tier::TierSource;
use crate::{Costs, HeaderOptions, Limit, OnExceeded, OnMissingKey, Paths, RequestHead};

/// Collects the limits and options of a [`RateLimitLayer`].
///
/// | option | default | reason |
/// |---|---|---|
/// | [`costs`](Self::costs) | by method | a write costs a service more than a read |
/// | [`tiers`](Self::tiers) | required if a limit has tiers | only the program knows |
/// | [`exempt`](Self::exempt) | no request | an exemption should be explicit |
/// | [`exempt_preflights`](Self::exempt_preflights) | yes | to a page a denied preflight looks like a broken network |
/// | [`grpc`](Self::grpc) | routes of the form `/package.Service/Method` | a client can write any content type |
/// | [`on_missing_key`](Self::on_missing_key) | required if a key can be missing | no answer is right for all services |
/// | [`max_waiting`](Self::max_waiting), [`wait_queue`](Self::wait_queue) | 1024 requests, 64 MiB | each request holds a connection and memory |
/// | [`headers`](Self::headers) | two on allowed responses, all on denials | clients can stop in time |
/// | [`on_denied`](Self::on_denied) | a [problem body](crate::denial::Problem) | machines and people can read it |
/// | [`expose_verdicts`](Self::expose_verdicts) | off | it costs an allocation per request |
/// | `observer`, `endpoint` (feature `metrics`) | its own; the matched route | labels of [metrics] |
///
/// ```
/// use tollgate::key::ClientIp;
/// use tollgate::{HeaderOptions, Limit, MemoryStore, Paths, Policy, Quota, RateLimitLayer};
///
/// let client = Policy::token_bucket("client", Quota::per_minute(100).burst(20))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .cost(1)
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
    /// With reqwest, put the layer around a service that calls `Client::execute`:
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
        let limit = Limit::global(policy).on_exceeded(OnExceeded::Wait { max: max_wait });
        let none = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
        Self::builder(store).limit(limit.cost(1)).headers(none).build()
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
        Self::builder(MemoryStore::new()).limit(limit.cost(1)).build()
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

    /// Sets the costs for limits without costs of their own.
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

    /// Forwards requests for which `condition` returns `true` without a call of the store.
    #[must_use]
    pub fn exempt(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.exempt.push(Arc::new(condition));
        self
    }

    /// Forwards requests to these paths, for example `/healthz`, without a call of the store.
    #[must_use]
    pub fn exempt_paths(self, paths: Paths) -> Self {
        self.exempt(move |head| paths.surely_contains(head.uri.path()))
    }

    /// Whether [CORS preflights](RequestHead::is_preflight) pass without a call of the store.
    ///
    /// A client can send any number of preflights. A CORS layer outside of this layer answers them, so
    /// they never arrive here. Without such a layer, set this to `false` if your service accepts no
    /// requests of other sites: preflights then have the cost of OPTIONS.
    #[must_use]
    pub fn exempt_preflights(mut self, exempt: bool) -> Self {
        self.options.exempt_preflights = exempt;
        self
    }

    /// Whether all services inside are gRPC, or none.
    ///
    /// A gRPC call costs 1 ([`Costs`]), and its denial is a gRPC status with the HTTP status 200.
    /// A client can write any content type. So without this option a request is a call only if it is a
    /// POST with the content type of gRPC, and its route (without a router: its path) has the form
    /// `/package.Service/Method`. Services without a package need `.grpc(true)`. With `.grpc(false)`
    /// no request is a call. Clients of gRPC-Web read the HTTP status, so they get HTTP.
    #[must_use]
    pub fn grpc(mut self, all: bool) -> Self {
        self.options.is_grpc = Some(all);
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

    /// Sets the response of a denial. With the feature `axum` the closure may return any
    /// `IntoResponse`, otherwise a `Response<Bytes>`. The layer adds the headers. gRPC calls get their
    /// status as before.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, RateLimitLayer};
    /// use axum::http::StatusCode;
    /// use serde_json::json;
    ///
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let text = builder.on_denied(|denial| (denial.status(), denial.detail().into_owned()));
    /// let builder = RateLimitLayer::builder(MemoryStore::new());
    /// let json = builder.on_denied(|denial| {
    ///     let path = denial.request().map(|head| head.uri.path());
    ///     denial.json(&json!({"error": "slow down", "path": path, "wait": denial.retry_after_secs()}))
    /// });
    /// # let _ = (text, json, StatusCode::OK);
    /// ```
    #[must_use]
    pub fn on_denied<F, R, Via>(self, response: F) -> Self
    where
        F: Fn(&Denial<'_>) -> R + Send + Sync + 'static,
        R: IntoDenialResponse<Via>,
        Via: 'static,
    {
        self.denial_response(FromFn(response, PhantomData))
    }

    /// Sets the response of a denial, also to gRPC calls: a [`Problem`](crate::denial::Problem) with
    /// more members, or a [`DenialResponse`] of your own.
    #[must_use]
    pub fn denial_response(mut self, response: impl DenialResponse) -> Self {
        self.options.response = Arc::new(response);
        self
    }

    /// Puts the verdict into the extensions of request and response, as
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
    pub fn observer(mut self, observer: &crate::Observer) -> Self {
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
        check(&limits)?;
        check_local(&mut limits, &store)?;
        check_tiers(&limits, options.tiers.is_some())?;
        for limit in limits.iter().filter(|limit| limit.enforce) {
            let costs = limit.costs.as_ref().unwrap_or(&options.costs);
            if !costs.is_flat() {
                let policy = limit.policy.name();
                tracing::info!(target: "tollgate", policy, %costs, "costs of requests");
            }
            warn_of_costs(limit, costs);
        }
        Ok(RateLimitLayer::new(LayerState::new(store, limits, options)))
    }
}

fn check(limits: &[Limit]) -> Result<(), LayerError> {
    if limits.is_empty() {
        return Err(LayerError::NoLimit);
    }
    if limits.len() > LayerError::MAX_LIMITS {
        return Err(LayerError::TooManyLimits(limits.len()));
    }
    let mut queue = None;
    for (index, limit) in limits.iter().enumerate() {
        let name = || limit.policy.name().to_owned();
        if limits[..index].iter().any(|other| other.policy.name() == limit.policy.name()) {
            return Err(LayerError::SameName(name()));
        }
        match (limit.key.can_be_missing(), limit.on_missing_key) {
            (true, None) => return Err(LayerError::MissingKeyUndecided(name())),
            (false, Some(_)) => return Err(LayerError::KeyNeverMissing(name())),
            _ => {}
        }
        if limit.policy.is_concurrency() && limit.settling.settles() {
            return Err(LayerError::SettlesInFlight(name()));
        }
        if limit.policy.is_penalty() {
            check_penalty(limit, limits)?;
        }
        if limit.enforce
            && limit.policy.queues()
            && let Some(first) = queue.replace(name())
        {
            return Err(LayerError::TwoQueues(first, name()));
        }
    }
    Ok(())
}

/// A policy that falls back to a local store needs one, and a local store needs such a policy.
fn check_local(limits: &mut [Limit], store: &impl Store) -> Result<(), LayerError> {
    let has_local = store.has_local_fallback();
    let default = if has_local { OnStoreError::Local } else { OnStoreError::Open };
    limits.iter_mut().for_each(|limit| limit.default_on_store_error(default));
    match (limits.iter().find(|limit| limit.policy.may_fall_back()), has_local) {
        (Some(limit), false) => Err(LayerError::NoLocalStore(limit.policy.name().to_owned())),
        (None, true) => Err(LayerError::LocalStoreUnused),
        _ => Ok(()),
    }
}

/// A penalty needs strikes. A request that waits must not count as several denials.
fn check_penalty(limit: &Limit, limits: &[Limit]) -> Result<(), LayerError> {
    let name = || limit.policy.name().to_owned();
    let (denials, failures) = (limit.policy.counts_denials(), limit.settling.counts.is_some());
    if limit.settling.reserve.is_some() || !(denials || failures) {
        return Err(LayerError::NoFailures(name()));
    }
    let waiting = limits.iter().find(|limit| limit.max_wait().is_some());
    match waiting.filter(|_| denials) {
        Some(waiting) => {
            Err(LayerError::PenaltyBesideWaiting(name(), waiting.policy.name().to_owned()))
        }
        None => Ok(()),
    }
}

fn check_tiers(limits: &[Limit], has_source: bool) -> Result<(), LayerError> {
    if let Some(limit) = limits.iter().find(|limit| limit.tiers().next().is_some())
        && !has_source
    {
        return Err(LayerError::TiersUnknown(limit.policy.name().to_owned()));
    }
    let given = tier_names(limits).len();
    if given > MAX_TIERS { Err(LayerError::TooManyTiers(given)) } else { Ok(()) }
}

fn warn_of_costs(limit: &Limit, costs: &Costs) {
    if limit.policy.is_penalty() {
        return;
    }
    let cost = costs.max_cost().get();
    let in_tiers = limit.tiers().map(|(tier, policy)| (Some(tier.as_str()), policy));
    for (tier, policy) in std::iter::once((None, &limit.policy)).chain(in_tiers) {
        let capacity = policy.capacity();
        if cost > capacity {
            tracing::warn!(
                target: "tollgate",
                policy = policy.name(),
                tier,
                capacity,
                cost,
                "some requests cost more than the policy ever grants at once and will \
                 always be refused with 403; raise the burst or lower the cost",
            );
        }
    }
}

/// Why a layer cannot be built. The texts are names of policies.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The quota of a short form does not fit its policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),

    /// The layer has no limit.
    #[error("the layer has no limit: add one with `.limit(..)`")]
    NoLimit,

    /// The layer has this number of limits.
    #[error("{0} limits are more than the {max} of one layer: nest two layers", max = Self::MAX_LIMITS)]
    TooManyLimits(usize),

    /// Two policies have one name, so they would share their state.
    #[error("two policies are named `{0}`: give each a name of its own")]
    SameName(String),

    /// The key can be missing, and the limit has no [`OnMissingKey`].
    #[error(
        "policy `{0}`: the key can be missing from a request; choose \
         `.on_missing_key(OnMissingKey::Deny)`, `Pass` or `Share`, or end the chain with a \
         source that always finds a key, such as `ClientIp`"
    )]
    MissingKeyUndecided(String),

    /// The limit has an [`OnMissingKey`], and its key cannot be missing.
    #[error(
        "policy `{0}`: `.on_missing_key(..)` has no effect, because the key source finds a key \
         in every request or fails: remove it from the limit, or put it on the layer's builder as \
         a default for limits that need it"
    )]
    KeyNeverMissing(String),

    /// The limit has tiers, and the layer has no source of tiers.
    #[error(
        "policy `{0}` has quotas for tiers: add the source of the tier with \
         `.tiers(tier::from_fn(|head| ..))`, or a list of API keys, or a claim of a token"
    )]
    TiersUnknown(String),

    /// The layer has this number of tiers.
    #[error("{0} tiers are more than the {MAX_TIERS} of one layer")]
    TooManyTiers(usize),

    /// A permit is returned when its request ends, so its cost cannot be corrected.
    #[error(
        "policy `{0}` is a concurrency limit, whose permits are returned at the end of each \
         request: put `.reserve(..)` and `.count_only(..)` on a limit of another kind"
    )]
    SettlesInFlight(String),

    /// A penalty of failures needs a condition for failures.
    #[error(
        "penalty `{0}` has no strikes: choose the responses that are failures with \
         `.count_only(|response| ..)`, without `.reserve(..)`, or use `Strikes::of_denials`"
    )]
    NoFailures(String),

    /// The penalty counts denials, and requests that wait for the second policy are denied at first.
    #[error(
        "penalty `{0}` counts denials, and requests that wait for `{1}` are denied at first: put \
         the penalty and its limits into a layer outside of this one"
    )]
    PenaltyBesideWaiting(String, String),

    /// The policy has [`OnStoreError::Local`], and the store has no local store.
    #[error(
        "policy `{0}` has `OnStoreError::Local`, but the store has no local fallback: give the \
         layer `store.or_local(MemoryStore::new())`, or choose `OnStoreError::Open` or \
         `OnStoreError::Closed`"
    )]
    NoLocalStore(String),

    /// The store has a local store that no policy uses.
    #[error(
        "the store has a local fallback, but no policy uses it: remove \
         `.with_on_store_error(..)` from a policy, or give the layer the store without \
         `.or_local(..)`"
    )]
    LocalStoreUnused,

    /// Both policies would hold requests back.
    #[error(
        "`{0}` and `{1}` are both leaky buckets in queue mode, and a request can wait in one queue \
         only: build one of them by `Policy::new` as an `Algorithm::LeakyBucket` with \
         `LeakyMode::Meter`"
    )]
    TwoQueues(String, String),
}

tollgate_core::debug_as_display!(LayerError);

impl LayerError {
    /// The largest number of limits of one layer.
    pub const MAX_LIMITS: usize = 64;
}

debug_fields!([St] RateLimitLayerBuilder<St>, limits, options);
