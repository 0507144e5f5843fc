//! What a layer is made of, checked once.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Cost, OnStoreError, Policy, PolicyError, Store};

use super::limits::{MAX_TIERS, tier_names};
use super::options::Options;
use super::service::RateLimitLayer;
use super::state::LayerState;
use super::wait_queue::WaitQueue;
use crate::denial::{Denial, DenialResponse, FromFn, IntoDenialResponse};
use crate::tier::TierSource;
use crate::{Costs, HeaderOptions, Limit, OnExceeded, OnMissingKey, Paths, RequestHead};

/// Collects the limits and options of a [`RateLimitLayer`].
///
/// | option | default | why |
/// |---|---|---|
/// | [`costs`](Self::costs) | by method | a write costs a service more than a read |
/// | [`tiers`](Self::tiers) | must be said if a limit has any | nobody else can know |
/// | [`exempt`](Self::exempt) | nothing | what is not limited should be named |
/// | [`exempt_preflights`](Self::exempt_preflights) | yes | to a page a denied preflight looks like a broken network |
/// | [`grpc`](Self::grpc) | routes of the form `/package.Service/Method` | a content type alone is the client's word |
/// | [`on_missing_key`](Self::on_missing_key) | must be said if a key can be missing | both answers surprise somebody |
/// | [`max_waiting`](Self::max_waiting), [`wait_queue`](Self::wait_queue) | 1024 requests, 64 MiB | each holds a connection and its request in memory |
/// | [`headers`](Self::headers) | the draft's two on allowed responses, all on denials | clients that know what is left stop in time |
/// | [`on_denied`](Self::on_denied) | a [problem body](crate::denial::Problem) | machines and people can read it |
/// | [`expose_verdicts`](Self::expose_verdicts) | off | it costs an allocation a request |
/// | `observer`, `endpoint` (feature `metrics`) | its own; the matched route | how [metrics] tell layers and requests apart |
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
    /// `max_wait` until the policy lets it pass. The responses get no header fields.
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

/// Passing a builder to `.layer(..)` is a compile error that says what is missing.
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

    /// One limit more. Its order is that of the header fields; the decision has none.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// What requests cost, where a limit has no costs of its own.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.options.costs = costs;
        self
    }

    /// Every request costs `units`, where a limit has no costs of its own: short for
    /// `.costs(Costs::flat(units))`.
    #[must_use]
    pub fn cost(self, units: impl Into<Cost>) -> Self {
        self.costs(Costs::flat(units))
    }

    /// Says which tier a request is in, for limits that have quotas
    /// [in tiers](Limit::in_tier).
    #[must_use]
    pub fn tiers(mut self, source: impl TierSource) -> Self {
        self.options.tiers = Some(Arc::new(source));
        self
    }

    /// Up to `requests` may wait at once for limits with [`OnExceeded::Wait`](crate::OnExceeded), in all
    /// services of the layer together. Others are rejected.
    ///
    /// This sets [`WaitQueue::max_requests`] of the layer's wait queue. If the layer was given
    /// a [`wait_queue`](Self::wait_queue) before, the bound holds for all layers that share
    /// that queue.
    #[must_use]
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.options.queue = self.options.queue.max_requests(requests);
        self
    }

    /// The wait queue for limits with [`OnExceeded::Wait`](crate::OnExceeded), bounded in number and
    /// bytes. Several layers can share one. It replaces the layer's own queue and
    /// [`max_waiting`](Self::max_waiting) if that was set before.
    #[must_use]
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.options.queue = queue.clone();
        self
    }

    /// Lets requests pass of which `condition` holds, without asking the store.
    #[must_use]
    pub fn exempt(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.options.exempt.push(Arc::new(condition));
        self
    }

    /// Lets requests to these paths pass, without asking the store: health, metrics.
    #[must_use]
    pub fn exempt_paths(self, paths: Paths) -> Self {
        self.exempt(move |head| paths.exempt(head))
    }

    /// Whether [CORS preflights](RequestHead::is_preflight) pass without asking the store. By default
    /// they do, because a browser sends them by itself, and to its page a denied preflight looks
    /// like a broken network.
    ///
    /// A client can send any number of them. A CORS layer outside of this one answers them itself,
    /// so they never arrive here. If your service takes no requests from other sites, or a proxy
    /// adds the CORS headers, set this to `false`: preflights then cost what OPTIONS costs.
    #[must_use]
    pub fn exempt_preflights(mut self, exempt: bool) -> Self {
        self.options.exempt_preflights = exempt;
        self
    }

    /// Whether the services inside are gRPC: all of them, or none.
    ///
    /// A gRPC call costs 1 ([`Costs`]), and its denial is a gRPC status, which has the HTTP
    /// status 200. Without this option a request is a call if it is a POST, its content type says
    /// so, and its route (or its path, where no router has matched a route) has the form
    /// `/package.Service/Method`. tonic's routes have it, except those of services without a
    /// package: these need `.grpc(true)`. With `.grpc(false)` no request is a call.
    #[must_use]
    pub fn grpc(mut self, all: bool) -> Self {
        self.options.is_grpc = Some(all);
        self
    }

    /// What becomes of a request that does not say whose quota it uses, where a limit
    /// does not say it itself. Limits whose key cannot be missing ignore it.
    #[must_use]
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Which header fields to send.
    #[must_use]
    pub fn headers(mut self, headers: HeaderOptions) -> Self {
        self.options.headers = headers;
        self
    }

    /// Makes the response of a denial. With the feature `axum` the closure may return anything that
    /// is `IntoResponse`, without it a `Response<Bytes>`. The header fields are added to the response.
    /// gRPC calls get their status as before.
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

    /// Makes the response of a denial, also to gRPC calls: a [`Problem`](crate::denial::Problem) with
    /// members of the service's own, or a [`DenialResponse`] of your own.
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

    /// Who is told of all decisions. Layers that are given clones of one observer count
    /// policies of one name together; without it a layer has one of its own.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn observer(mut self, observer: &crate::Observer) -> Self {
        self.options.observed.observer = Some(observer.clone());
        self
    }

    /// The endpoint of all requests, as metrics name it. Without it that is the pattern of
    /// the matched route, and `other` where no router has matched one.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.options.observed.endpoint = Some(endpoint.into());
        self
    }

    /// The layer, or what stands in its way.
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
        return Err(LayerError::TooManyLimits { given: limits.len() });
    }
    let mut queue = None;
    for (index, limit) in limits.iter().enumerate() {
        let name = || limit.policy.name().to_owned();
        if limits[..index].iter().any(|other| other.policy.name() == limit.policy.name()) {
            return Err(LayerError::SameName { name: name() });
        }
        match (limit.key.can_be_missing(), limit.on_missing_key) {
            (true, None) => return Err(LayerError::MissingKeyUndecided { name: name() }),
            (false, Some(_)) => return Err(LayerError::KeyNeverMissing { name: name() }),
            _ => {}
        }
        if limit.policy.is_concurrency() && limit.settling.settles() {
            return Err(LayerError::SettlesInFlight { name: name() });
        }
        if limit.policy.is_penalty() {
            check_penalty(limit, limits)?;
        }
        if limit.enforce
            && limit.policy.queues()
            && let Some(first) = queue.replace(name())
        {
            return Err(LayerError::TwoQueues { first, second: name() });
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
        (Some(limit), false) => {
            Err(LayerError::NoLocalStore { name: limit.policy.name().to_owned() })
        }
        (None, true) => Err(LayerError::LocalStoreUnused),
        _ => Ok(()),
    }
}

/// A penalty needs something that strikes it, and once for what is one request.
fn check_penalty(limit: &Limit, limits: &[Limit]) -> Result<(), LayerError> {
    let name = || limit.policy.name().to_owned();
    let (denials, failures) = (limit.policy.counts_denials(), limit.settling.counts.is_some());
    if limit.settling.reserve.is_some() || !(denials || failures) {
        return Err(LayerError::NoFailures { name: name() });
    }
    let waiting = limits.iter().find(|limit| limit.max_wait().is_some());
    match waiting.filter(|_| denials) {
        Some(waiting) => {
            let waiting = waiting.policy.name().to_owned();
            Err(LayerError::PenaltyBesideWaiting { name: name(), waiting })
        }
        None => Ok(()),
    }
}

fn check_tiers(limits: &[Limit], has_source: bool) -> Result<(), LayerError> {
    if let Some(limit) = limits.iter().find(|limit| limit.tiers().next().is_some())
        && !has_source
    {
        return Err(LayerError::TiersUnknown { name: limit.policy.name().to_owned() });
    }
    let given = tier_names(limits).len();
    if given > MAX_TIERS { Err(LayerError::TooManyTiers { given }) } else { Ok(()) }
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

/// Why a layer cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A policy that a short form of the layer makes is not valid.
    #[error(transparent)]
    Policy(#[from] PolicyError),

    /// A layer without limits would do nothing.
    #[error("the layer has no limit: add one with `.limit(..)`")]
    NoLimit,

    /// More limits than a layer decides at once.
    #[error("{given} limits are more than the {} of one layer: nest two layers", Self::MAX_LIMITS)]
    TooManyLimits {
        /// So many were given.
        given: usize,
    },

    /// Two policies of one name share their state, and clients could not tell them apart.
    #[error("two policies are named `{name}`: give each a name of its own")]
    SameName {
        /// The name.
        name: String,
    },

    /// Nobody said what becomes of requests that do not say whose quota they use.
    #[error(
        "policy `{name}`: the key can be missing from a request; say what then with \
         `.on_missing_key(OnMissingKey::Deny)`, `Pass` or `Share`, or end the chain with a \
         source that always finds one, such as `ClientIp`"
    )]
    MissingKeyUndecided {
        /// The policy.
        name: String,
    },

    /// A limit says what becomes of requests without a key, and its source always finds one.
    #[error(
        "policy `{name}`: `.on_missing_key(..)` has no effect, because the key source finds a key \
         in every request or fails: remove it from the limit, or put it on the layer's builder as \
         a default for limits that need it"
    )]
    KeyNeverMissing {
        /// The policy.
        name: String,
    },

    /// A limit has quotas for tiers, and nobody says which tier a request is in.
    #[error(
        "policy `{name}` has quotas for tiers: say which tier a request is in with \
         `.tiers(tier::from_fn(|head| ..))`, or a list of API keys, or a claim of a token"
    )]
    TiersUnknown {
        /// The policy.
        name: String,
    },

    /// More tiers than a layer tells apart.
    #[error("{given} tiers are more than the {MAX_TIERS} of one layer")]
    TooManyTiers {
        /// So many were given.
        given: usize,
    },

    /// What counts in flight is given back when its request is over, whatever that has cost.
    #[error(
        "policy `{name}` counts what is in flight, which comes back at the end of each request: \
         `.reserve(..)` and `.count_only(..)` have nothing to correct there; put them on a limit \
         of its own"
    )]
    SettlesInFlight {
        /// The policy.
        name: String,
    },

    /// A penalty of failures has to be told what a failure is.
    #[error(
        "penalty `{name}` has nothing that strikes it: say which responses are failures with \
         `.count_only(|response| ..)`, and not `.reserve(..)`, or use `Strikes::of_denials`"
    )]
    NoFailures {
        /// The policy.
        name: String,
    },

    /// A request that waits may be denied often before it passes.
    #[error(
        "penalty `{name}` counts denials, and requests wait for `{waiting}` that are denied at \
         first: put the penalty and its limits into a layer outside of that"
    )]
    PenaltyBesideWaiting {
        /// The penalty.
        name: String,
        /// A limit whose excess waits.
        waiting: String,
    },

    /// A policy says [`OnStoreError::Local`], and the store has no local store to fall back to.
    #[error(
        "policy `{name}` has `OnStoreError::Local`, but the store has no local fallback: give the \
         layer `store.or_local(MemoryStore::new())`, or choose `OnStoreError::Open` or \
         `OnStoreError::Closed`"
    )]
    NoLocalStore {
        /// The policy.
        name: String,
    },

    /// The store has a local store to fall back to, and no policy uses it.
    #[error(
        "the store has a local fallback, but no policy uses it: remove \
         `.with_on_store_error(..)` from a policy, or give the layer the store without \
         `.or_local(..)`"
    )]
    LocalStoreUnused,

    /// A request can wait in one queue only.
    #[error(
        "`{first}` and `{second}` are both leaky buckets in queue mode, and a request can wait \
         in one queue only: build one of them by `Policy::new` as an `Algorithm::LeakyBucket` \
         with `LeakyMode::Meter`"
    )]
    TwoQueues {
        /// The first queue.
        first: String,
        /// The second.
        second: String,
    },
}

tollgate_core::debug_as_display!(LayerError);

impl LayerError {
    /// The most limits of one layer.
    pub const MAX_LIMITS: usize = 64;
}

impl<St> fmt::Debug for RateLimitLayerBuilder<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .field("limits", &self.limits)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
