//! Middleware for [`reqwest`] that keeps all processes within another service's quota.
//!
//! Each request first gets a permit from a [`Limiter`], which counts and queues the requests of all
//! processes that share its store. The middleware reads the limits in each response, so a `Retry-After`
//! pauses all processes.
//!
//! ```
//! use std::time::Duration;
//!
//! use reqwest_middleware::ClientBuilder;
//! use tollgate::limiter::AcquireError;
//! use tollgate::{Limiter, MemoryStore, Policy, Quota};
//! use tollgate_reqwest::PoliteMiddleware;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // With a `RedisStore`, all processes share this quota.
//! let granted = Policy::sliding_window_log("partner", Quota::per_minute(100))?;
//! let limiter = Limiter::builder(MemoryStore::new())
//!     .policy(granted)
//!     .queue(Duration::from_secs(120))
//!     .pausable(Duration::from_secs(300))
//!     .retries(10)
//!     .build()?;
//! let polite = PoliteMiddleware::new(limiter).retries(3).deadline(Duration::from_secs(60));
//! let client = ClientBuilder::new(reqwest::Client::new()).with(polite).build();
//!
//! match client.get("http://localhost:9/orders").send().await {
//!     Ok(response) => println!("{}", response.status()),
//!     Err(reqwest_middleware::Error::Middleware(error)) => {
//!         let refused = error.downcast_ref::<AcquireError>();
//!         println!("not sent: {error}; try again in {:?}", refused.and_then(|it| it.retry_after()));
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! A request that the limiter does not allow is never sent, and fails with an
//! [`AcquireError`](tollgate::limiter::AcquireError) in
//! [`Error::Middleware`]. So a response with status 429 is
//! always the service's.
//!
//! # Order of middleware
//!
//! Add a cache before this middleware, so cached responses are free. Add a signature with a timestamp
//! after it, because each attempt needs its own signature. Another retry middleware has no budget.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::{Limiter, Store};

/// Middleware that gets a permit for each request, and learns from each response.
///
/// Clones share their quotas. The permit is in the extensions of the response, as `Arc<Permit<St>>`,
/// for example to [settle](tollgate::limiter::Permit::settle_policy) the actual cost. If a
/// denial's retry was refused, the response has no permit. Under a concurrency limit, the request
/// counts until the permit is dropped, together with the response's extensions.
///
/// If no connection can be made, the charge is refunded. Otherwise a request costs its units even if
/// it fails, because the service may have counted it.
#[derive(Clone)]
#[must_use]
pub struct PoliteMiddleware<St: Store> {
    limiter: Limiter<St>,
    key: OfRequest<Key>,
    cost: OfRequest<Cost>,
    retries: u32,
    deadline: Duration,
}

type OfRequest<T> = Arc<dyn Fn(&Request) -> T + Send + Sync>;

/// Overrides whether a request may be sent again. Without this extension, requests with an idempotent
/// method such as GET or PUT may. Set it with
/// [`with_extension`](reqwest_middleware::RequestBuilder::with_extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotent(pub bool);

impl<St: Store> PoliteMiddleware<St> {
    /// Creates middleware with one quota per host, in which each request costs 1, without retries.
    /// Requests wait for as long as the limiter lets them.
    pub fn new(limiter: Limiter<St>) -> Self {
        let key = |request: &Request| Key::from(request.url().host_str().unwrap_or_default());
        let cost = |_: &Request| Cost::ONE;
        let (key, cost) = (Arc::new(key), Arc::new(cost));
        Self { limiter, key, cost, retries: 0, deadline: Duration::MAX }
    }

    /// Sets the key under which a request is charged, for example its account with the service.
    pub fn key(self, key: impl Fn(&Request) -> Key + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    /// Sets a request's cost under each policy of the limiter.
    pub fn cost(self, cost: impl Fn(&Request) -> Cost + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Sets how often a request is sent again if the service denies it. The limiter needs a [retry
    /// budget](tollgate::limiter::LimiterBuilder::retries), and should be
    /// [pausable](tollgate::limiter::LimiterBuilder::pausable).
    ///
    /// Only requests that are [`Idempotent`], with a body that is no stream, are sent again. If the
    /// budget, the deadline or the service's `X-Should-Retry` does not allow a retry, the request
    /// returns the service's response.
    pub fn retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    /// Sets the longest time that a request may wait for its permits, from its first attempt to its
    /// last, if it is shorter than the limiter's.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

#[async_trait]
impl<St: Store> Middleware for PoliteMiddleware<St> {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let is_idempotent = match extensions.get() {
            Some(Idempotent(is_idempotent)) => *is_idempotent,
            None => request.method().is_idempotent(),
        };
        let mut retries = if is_idempotent { self.retries } else { 0 };
        let (key, cost) = ((self.key)(&request), (self.cost)(&request));
        let call = self.limiter.request().all(&key, cost).within(self.deadline);
        let mut permit = call.acquire().await.map_err(Error::middleware)?;
        loop {
            let copy = if retries > 0 { request.try_clone() } else { None };
            let mut response = match next.clone().run(request, extensions).await {
                Ok(response) => response,
                Err(error) => {
                    if error.is_connect() {
                        let _ = permit.cancel().await;
                    }
                    return Err(error);
                }
            };
            let now = SystemTime::now();
            let feedback = Feedback::read(response.status(), response.headers(), now);
            // The event that reports a failure is enough.
            let _ = permit.learn(&feedback).await;
            let retry = feedback.is_denial() && feedback.should_retry() != Some(false);
            let Some(copy) = copy.filter(|_| retry) else {
                response.extensions_mut().insert(Arc::new(permit));
                return Ok(response);
            };
            permit = match permit.retry().await {
                Ok(permit) => permit,
                Err(error) => {
                    tracing::debug!(target: "tollgate", %error, "not sent again");
                    return Ok(response);
                }
            };
            (request, retries) = (copy, retries - 1);
        }
    }
}

impl<St: Store> fmt::Debug for PoliteMiddleware<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limiter, retries, deadline, .. } = self;
        f.debug_struct("PoliteMiddleware")
            .field("limiter", limiter)
            .field("retries", retries)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

/// The examples of the guide are compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/retries.md")]
struct Guide;
