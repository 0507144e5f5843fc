//! Budgets around an axum router that forwards requests to models.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use tollgate::denial::{Denial, Reason};
use tollgate::headers::HeaderOptions;
use tollgate::key::{KeySource, RequestHead};
use tollgate::layer::{LayerError, RateLimitLayerBuilder, Reservation};
use tollgate::limit::{OnMissingKey, Reserve};
use tollgate::{Costs, Limit, Policy, RateLimitLayer, Store};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Call, Meter, Model, Models, OutputHistory, Usage, Watch, WatchedBody, error_response};

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
    shared: Arc<Budget>,
}

struct Budget {
    key: Box<dyn KeySource>,
    models: Models,
    history: OutputHistory,
    max_body: usize,
    tokens: Option<String>,
    money: Option<String>,
}

/// Builds an [`LlmBudget`]. A policy applies to each key.
#[must_use]
pub struct LlmBudgetBuilder<St, K> {
    limits: RateLimitLayerBuilder<St>,
    key: K,
    models: Models,
    max_body: usize,
    tokens: Option<String>,
    money: Option<String>,
}

impl<St: Store> LlmBudget<St> {
    /// Starts a budget for each `key`.
    pub fn builder<K: KeySource + Clone>(
        store: St,
        key: K,
        models: Models,
    ) -> LlmBudgetBuilder<St, K> {
        let limits = RateLimitLayer::builder(store)
            .headers(HeaderOptions::default().x_ratelimit_by_policy())
            .denial_response(denied);
        LlmBudgetBuilder { limits, key, models, max_body: 4 << 20, tokens: None, money: None }
    }
}

impl<St: Store, K: KeySource + Clone> LlmBudgetBuilder<St, K> {
    /// Limits requests or concurrent requests. May be called several times.
    pub fn requests(mut self, policy: Policy) -> Self {
        self.limits = self.limits.limit(limit(policy, &self.key));
        self
    }

    /// Limits input and output tokens.
    pub fn tokens(mut self, policy: Policy) -> Self {
        self.tokens = Some(policy.name().to_owned());
        let limit = limit(policy, &self.key);
        self.limits = self.limits.limit(by_usage(limit, |_, usage| usage.total()));
        self
    }

    /// Limits the tokens' price, in the unit of the [prices](crate::Price).
    pub fn money(mut self, policy: Policy) -> Self {
        self.money = Some(policy.name().to_owned());
        let limit = limit(policy, &self.key);
        self.limits = self.limits.limit(by_usage(limit, |model, usage| model.price().of(usage)));
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
        let Self { limits, key, models, max_body, tokens, money } = self;
        let (key, history) = (Box::new(key), OutputHistory::new(MAX_PAIRS));
        let shared = Arc::new(Budget { key, models, history, max_body, tokens, money });
        Ok(LlmBudget { limits: limits.build()?, shared })
    }
}

/// The maximum number of client and model pairs with a known usual output.
const MAX_PAIRS: usize = 100_000;

fn limit(policy: Policy, key: &(impl KeySource + Clone)) -> Limit {
    Limit::new(policy, key.clone()).on_missing_key(OnMissingKey::Deny)
}

fn by_usage(limit: Limit, units: fn(&Model, &Usage) -> u64) -> Limit {
    // Only a request without a body, such as a GET, has no call.
    let costs = Costs::flat(0).from_fn(move |head: &RequestHead<'_>| {
        let call = head.extensions.get::<Call>()?;
        Some(units(call.model(), &call.estimate()))
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

/// A service behind an [`LlmBudget`].
#[derive(Clone, Debug)]
pub struct LlmService<S> {
    inner: S,
    shared: Arc<Budget>,
}

type Responding<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for LlmService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Responding<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Only the original is ready, so it handles the request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            match shared.read(request).await {
                Ok(request) => inner.call(request).await,
                Err(response) => Ok(response.map(Body::from)),
            }
        })
    }
}

impl Budget {
    /// Adds the [`Call`] to a request, or returns an error response.
    async fn read(&self, request: Request<Body>) -> Result<Request<Body>, Box<Response<Bytes>>> {
        // The limits deny a request without a key, so its body is not read.
        let Ok(Some(subject)) = self.key.subject(&RequestHead::of(&request)) else {
            return Ok(request);
        };
        if request.method() != Method::POST {
            return Ok(request);
        }
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path();
        Call::check_coding(path, &parts.headers)?;
        let is_long = body.size_hint().lower() > self.max_body as u64;
        let body = if is_long { None } else { to_bytes(body, self.max_body).await.ok() };
        let body = body.ok_or_else(|| {
            let what = "The request is too large, or it is incomplete.";
            Box::new(error_response(path, StatusCode::PAYLOAD_TOO_LARGE, None, what))
        })?;
        let (call, body) = Call::read(path, &mut parts.headers, body, &self.models)?;
        parts.extensions.insert(call.learning(&self.history, &subject.key));
        Ok(Request::from_parts(parts, Body::from(body)))
    }
}

/// The service between the limits and the router. It settles by the usage in the response.
#[derive(Clone, Debug)]
pub struct Settle<S> {
    inner: S,
    shared: Arc<Budget>,
}

impl<S> Service<Request<Body>> for Settle<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Responding<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let call = request.extensions_mut().remove::<Call>();
        let reservation = request.extensions().get::<Reservation>().cloned();
        let shared = Arc::clone(&self.shared);
        let answer = self.inner.call(request);
        let Some(call) = call else { return Box::pin(answer) };
        // A client that leaves before the response pays for its input.
        let reservation = reservation.unwrap_or_default();
        let mut bill = Bill { meter: Some(call.meter("")), reservation, shared };
        Box::pin(async move {
            let mut response = answer.await?;
            if !response.status().is_success() {
                bill.reservation.settle(0);
                return Ok(response);
            }
            bill.meter = call.meter_response(&mut response);
            if bill.meter.is_none() {
                // The estimate remains charged.
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(WatchedBody::new(body).watched_by(Box::new(bill)))))
        })
    }
}

/// Settles when it is dropped.
struct Bill {
    /// `None` if the response does not show its usage.
    meter: Option<Meter>,
    reservation: Reservation,
    shared: Arc<Budget>,
}

impl Watch for Bill {
    fn data(&mut self, data: Bytes) -> Bytes {
        match &mut self.meter {
            Some(meter) => meter.data(data),
            None => data,
        }
    }

    fn rest(&mut self, is_complete: bool) -> Bytes {
        self.meter.as_mut().map_or_else(Bytes::new, |meter| meter.rest(is_complete))
    }

    fn shortens(&self) -> bool {
        self.meter.as_ref().is_some_and(Meter::shortens)
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        let Some(meter) = &self.meter else { return };
        if let Some(tokens) = &self.shared.tokens {
            self.reservation.settle_policy(tokens, meter.usage().total());
        }
        if let Some(money) = &self.shared.money {
            self.reservation.settle_policy(money, meter.price());
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { models, max_body, .. } = self;
        f.debug_struct("Budget")
            .field("models", models)
            .field("max_body", max_body)
            .finish_non_exhaustive()
    }
}

impl<St> fmt::Debug for LlmBudget<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmBudget").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl<St, K> fmt::Debug for LlmBudgetBuilder<St, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmBudgetBuilder").field("models", &self.models).finish_non_exhaustive()
    }
}
