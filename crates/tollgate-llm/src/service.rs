//! The services of an `LlmBudget`: outside of the limits, and between the limits and the router.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use tollgate::key::{KeyError, KeySource, RequestHead};
use tollgate::layer::Reservation;
use tower_service::Service;

use crate::budget::Unit;
use crate::{Call, Meter, Models, OutputHistory, Watch, WatchedBody, error_response};

/// What the services of a layer share.
pub(crate) struct Shared {
    pub(crate) key: Arc<dyn KeySource>,
    pub(crate) models: Models,
    pub(crate) history: OutputHistory,
    pub(crate) max_body: usize,
    /// The policies, with the units in which the response settles them.
    pub(crate) prices: Vec<(String, Unit)>,
}

/// A service behind an [`LlmBudget`](crate::LlmBudget).
#[derive(Clone, Debug)]
pub struct LlmService<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared>,
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

impl Shared {
    /// Adds the [`Call`] to a request, or returns an error response.
    async fn read(&self, request: Request<Body>) -> Result<Request<Body>, Box<Response<Bytes>>> {
        // Not left to the limits: with budgets on levels only, no limit has the client's key.
        let subject = self.key.subject(&RequestHead::of(&request));
        let denied = |status, what| error_response(request.uri().path(), status, None, what);
        let subject = match subject {
            Ok(Some(subject)) => subject,
            Ok(None) => {
                let what = "The request has no valid API key.";
                return Err(Box::new(denied(StatusCode::UNAUTHORIZED, what)));
            }
            Err(KeyError::Ambiguous) => {
                let what = "The request has several API keys.";
                return Err(Box::new(denied(StatusCode::BAD_REQUEST, what)));
            }
            Err(error) => {
                tracing::error!(target: "tollgate", %error, "cannot identify the client");
                let what = "The server cannot identify its clients.";
                return Err(Box::new(denied(StatusCode::INTERNAL_SERVER_ERROR, what)));
            }
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
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared>,
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
    shared: Arc<Shared>,
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
        let usage = meter.usage();
        for (policy, unit) in &self.shared.prices {
            if let Some(actual) = unit.of(meter.model(), &usage) {
                self.reservation.settle_policy(policy, actual);
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { models, max_body, .. } = self;
        f.debug_struct("Budget")
            .field("models", models)
            .field("max_body", max_body)
            .finish_non_exhaustive()
    }
}
