//! Budgets around an axum router that forwards requests to models.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tollgate::denial::{Denial, Reason};
use tollgate::headers::HeaderOptions;
use tollgate::key::{KeySource, RequestHead};
use tollgate::layer::{LayerError, RateLimitLayerBuilder, Status};
use tollgate::limit::{OnMissingKey, Reserve};
use tollgate::{Costs, Limit, Policy, RateLimitLayer, Store};
use tower_layer::Layer;

use crate::budget::{Budget, Unit};
use crate::service::{LlmService, Settle, Shared};
use crate::{Call, Models, OutputHistory, error_response};

/// A layer with budgets in requests, tokens and money, around an axum router that forwards requests
/// to models (feature `axum`).
///
/// It reads the request, reserves its estimate, and settles tokens and money by the usage in the
/// response. The handler only forwards the request. An unsuccessful response is free, and a client
/// that leaves pays for its input and the text so far. Denials have the error body of the API, and
/// the status 401 without a key.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
/// use tollgate::{MemoryStore, Policy, Quota};
/// use tollgate_llm::{DOLLAR, LlmBudget, Model, Models, Price};
///
/// let models = Models::new(Model::new(Price::per_million(15 * DOLLAR, 120 * DOLLAR)));
/// let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k-7f3a"]));
/// let budget = LlmBudget::builder(MemoryStore::new(), key, models)
///     .requests(Policy::token_bucket("requests", Quota::per_minute(60))?)
///     .tokens(Policy::token_bucket("tokens", Quota::per_minute(100_000))?)
///     .build()?;
/// let app = axum::Router::<()>::new().layer(budget);
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LlmBudget<St> {
    limits: RateLimitLayer<St>,
    shared: Arc<Shared>,
}

/// Builds an [`LlmBudget`].
#[must_use]
pub struct LlmBudgetBuilder<St> {
    limits: RateLimitLayerBuilder<St>,
    key: Arc<dyn KeySource>,
    budget: Budget,
    levels: Vec<(Arc<dyn KeySource>, Budget)>,
    models: Models,
    max_body: usize,
}

impl<St: Store> LlmBudget<St> {
    /// Starts a budget for each `key`. Requests without a key get 401.
    pub fn builder(store: St, key: impl KeySource, models: Models) -> LlmBudgetBuilder<St> {
        let limits = RateLimitLayer::builder(store)
            .headers(HeaderOptions::default().x_ratelimit_by_policy())
            .denial_response(denied);
        let (key, budget, levels) = (Arc::new(key), Budget::new(), Vec::new());
        LlmBudgetBuilder { limits, key, budget, levels, models, max_body: 4 << 20 }
    }
}

impl<St: Store> LlmBudget<St> {
    /// Returns a service that shows callers where they stand on each level, without charging them.
    /// See [`Status`].
    pub fn status(&self) -> Status<St> {
        self.limits.status()
    }
}

impl<St: Store> LlmBudgetBuilder<St> {
    /// Limits each key's requests or concurrent requests. May be called several times.
    pub fn requests(mut self, policy: Policy) -> Self {
        self.budget = self.budget.requests(policy);
        self
    }

    /// Limits each key's input and output tokens.
    pub fn tokens(mut self, policy: Policy) -> Self {
        self.budget = self.budget.tokens(policy);
        self
    }

    /// Limits the price of each key's tokens, in the unit of the [prices](crate::Price).
    pub fn money(mut self, policy: Policy) -> Self {
        self.budget = self.budget.money(policy);
        self
    }

    /// Adds a level: a budget that several keys share, for example all keys of a team. Levels may
    /// be added in any order.
    ///
    /// One decision covers all levels. If any level has too little left, the model is not called,
    /// no level is charged, and the denial names the level's policy. The usage in the response
    /// settles all levels. So a key's own budget never bypasses its team's, and a large budget of
    /// the team gives a key no more than its own.
    ///
    /// A request for which `key` finds no subject, for example with an API key without a team,
    /// passes this level, and only the other levels count. `team.or(Global)` gives all such
    /// requests a shared budget instead.
    ///
    /// ```
    /// use tollgate::key::{ApiKey, ApiKeyGroups, ApiKeys, Global};
    /// use tollgate::{MemoryStore, Policy, Quota};
    /// use tollgate_llm::{Budget, DOLLAR, LlmBudget, Model, Models, Price};
    ///
    /// let models = Models::new(Model::new(Price::per_million(15 * DOLLAR, 120 * DOLLAR)));
    /// let teams = [("k-7f3a", "red"), ("k-91bc", "red"), ("k-c0de", "blue")];
    /// let bearer = ApiKey::in_authorization("Bearer");
    /// let key = bearer.clone().one_of(ApiKeys::from_keys(teams.map(|(key, _)| key)));
    /// let team = bearer.by_group(ApiKeyGroups::from_keys(teams));
    ///
    /// let of_team = Policy::token_bucket("tokens/team", Quota::per_minute(80_000))?;
    /// let of_all = Policy::token_bucket("budget/company", Quota::per_day(40 * DOLLAR))?;
    /// let layer = LlmBudget::builder(MemoryStore::new(), key, models)
    ///     .tokens(Policy::token_bucket("tokens", Quota::per_minute(50_000))?)
    ///     .per(team, Budget::new().tokens(of_team))
    ///     .per(Global, Budget::new().money(of_all))
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// In `x-ratelimit-remaining-tokens` and the other headers by policy, the policy `tokens/team`
    /// shares the headers of `tokens`, which describe the tightest level.
    pub fn per(mut self, key: impl KeySource, budget: Budget) -> Self {
        self.levels.push((Arc::new(key), budget));
        self
    }

    /// Sets the longest request body in bytes. The default is 4 MiB, and longer requests get 413.
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// See [`RateLimitLayerBuilder::build`].
    pub fn build(self) -> Result<LlmBudget<St>, LayerError> {
        let Self { mut limits, key, budget, levels, models, max_body } = self;
        let mut prices = Vec::new();
        let own = (Arc::clone(&key), budget, OnMissingKey::Deny);
        let levels = levels.into_iter().map(|(key, budget)| (key, budget, OnMissingKey::Pass));
        for (key, budget, on_missing_key) in std::iter::once(own).chain(levels) {
            let is_level = on_missing_key == OnMissingKey::Pass;
            for (unit, policy) in budget.0 {
                prices.push((policy.name().to_owned(), unit));
                let limit = limit(policy, unit, Arc::clone(&key), is_level);
                let can_be_missing = key.can_be_missing();
                limits = limits.limit(if can_be_missing {
                    limit.on_missing_key(on_missing_key)
                } else {
                    limit
                });
            }
        }
        let history = OutputHistory::new(MAX_PAIRS);
        let shared = Arc::new(Shared { key, models, history, max_body, prices });
        Ok(LlmBudget { limits: limits.build()?, shared })
    }
}

/// The maximum number of client and model pairs with a known usual output.
const MAX_PAIRS: usize = 100_000;

fn limit(policy: Policy, unit: Unit, key: Arc<dyn KeySource>, is_level: bool) -> Limit {
    let shared = policy.name().split_once('/').filter(|_| is_level);
    let shared = shared.map(|(name, _level)| name.to_owned());
    let limit = shared.into_iter().fold(Limit::new(policy, key), Limit::header_name);
    if unit == Unit::Requests {
        return limit;
    }
    // Only a request without a body, such as a GET, has no call.
    let costs = Costs::flat(0).with_fn(move |head: &RequestHead<'_>| {
        let call = head.extensions.get::<Call>()?;
        unit.of(call.model(), &call.estimate())
    });
    limit.costs(costs).reserve(Reserve::by_handler())
}

fn denied(denial: &Denial<'_>) -> Response<Bytes> {
    let status = match denial.reason() {
        Reason::MissingKey => StatusCode::UNAUTHORIZED,
        _ => denial.status(),
    };
    let path = denial.request().map_or("", |head| head.uri.path());
    let policy = denial.policies().first().copied();
    let mut response = error_response(path, status, policy, &denial.detail());
    denial.write_headers(response.headers_mut());
    response
}

impl<S, St> Layer<S> for LlmBudget<St>
where
    RateLimitLayer<St>: Layer<Settle<S>>,
{
    type Service = LlmService<<RateLimitLayer<St> as Layer<Settle<S>>>::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        let settle = Settle { inner, shared: Arc::clone(&self.shared) };
        LlmService { inner: self.limits.layer(settle), shared: Arc::clone(&self.shared) }
    }
}

impl<St> fmt::Debug for LlmBudget<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmBudget").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl<St> fmt::Debug for LlmBudgetBuilder<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmBudgetBuilder").field("models", &self.models).finish_non_exhaustive()
    }
}
