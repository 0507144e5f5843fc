//! The layer and its service: the first step of a request.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate_core::Store;
use tower_layer::Layer;
use tower_service::Service;

use super::admit::{Admission, admit};
use super::future::ResponseFuture;
use super::state::LayerState;
use super::wait::Waiting;
use crate::body::{AnyBody, BodyMode, SameBody};
use crate::{Limit, RequestHead};

/// Tower layer that limits the requests to the services inside.
///
/// **Clones of a layer, and all its services, share their limits**, because the state is in the
/// store. Two layers over one store share the state of policies with the same name, and charge a
/// request twice.
///
/// # Decisions
///
/// * The layer forwards CORS preflights and [exempt](crate::layer::RateLimitLayerBuilder::exempt)
///   requests without calling the store.
/// * Each [`Limit`] that applies has a key and a cost. The store decides all limits in one step: if
///   one denies, none is charged.
/// * A denied request gets a response of the layer ([`denial`](crate::denial)). Errors of the
///   service are unchanged.
/// * A leaky bucket in queue mode, and a limit with [`OnExceeded::Wait`](crate::limit::OnExceeded), hold
///   requests back. This needs a tokio runtime with its timer enabled.
/// * A request holds its permits
///   ([`Policy::concurrent_requests`](crate::Policy::concurrent_requests)) until its response has
///   ended, is dropped, or fails. A task renews them. A request that upgrades its connection (a
///   WebSocket) ends with the response, unless the handler keeps its
///   [`InFlight`](crate::body::InFlight).
/// * While the store cannot decide, each policy follows its [`OnStoreError`](crate::policy::OnStoreError).
///
/// # Deployment
///
/// * Put CORS *outside* of this layer (in axum: added after it), so that denials have CORS headers.
///   It must expose the [rate limit headers](crate::headers::EXPOSED) to scripts.
/// * Put authentication for [`key::FromExtension`](crate::key::FromExtension) outside too, and a limit by
///   address outside of that.
/// * Nested layers decide one after the other: a charge of the outer layer stands if the inner
///   layer denies. Put policies that must be all or none into one layer.
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let short = RateLimitLayer::per_ip(Quota::per_second(5).burst(20))?;
/// // The same in the long form:
/// let policy = Policy::token_bucket("client", Quota::per_second(5).burst(20))?;
/// let long = RateLimitLayer::builder(MemoryStore::new()).limit(Limit::per_ip(policy)).build()?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(long);
/// # let _ = (short, app);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<St, M = SameBody> {
    pub(super) state: Arc<LayerState<St>>,
    mode: PhantomData<M>,
}

impl<St: Store> RateLimitLayer<St> {
    pub(super) fn new(state: LayerState<St>) -> Self {
        Self { state: Arc::new(state), mode: PhantomData }
    }

    /// The same layer for services whose body does not implement
    /// [`HoldPermits`](crate::body::HoldPermits), such as hyper's `Incoming`. Responses then have a
    /// [`Body`](crate::body::Body) around the body of the service.
    #[must_use]
    pub fn any_body(self) -> RateLimitLayer<St, AnyBody> {
        RateLimitLayer { state: self.state, mode: PhantomData }
    }
}

impl<St: Store, M> RateLimitLayer<St, M> {
    /// Returns the store of the layer, to read, reset or settle.
    pub fn store(&self) -> &St {
        &self.state.store
    }

    /// Returns the limits of the layer, in their order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.state.limits.iter()
    }
}

impl<S, St: Store, M> Layer<S> for RateLimitLayer<St, M> {
    type Service = RateLimit<S, St, M>;

    fn layer(&self, inner: S) -> RateLimit<S, St, M> {
        RateLimit::new(inner, Arc::clone(&self.state))
    }
}

/// Written by hand, because a derived one would ask for `St: Clone` to clone a pointer.
impl<St, M> Clone for RateLimitLayer<St, M> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), mode: PhantomData }
    }
}

impl<St: Store, M> fmt::Debug for RateLimitLayer<St, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Tower service behind a [`RateLimitLayer`](super::RateLimitLayer).
///
/// Clones share one limit with each other and with the layer.
pub struct RateLimit<S, St, M = SameBody> {
    inner: S,
    pub(super) state: Arc<LayerState<St>>,
    mode: PhantomData<M>,
}

impl<S, St, M> RateLimit<S, St, M> {
    pub(super) fn new(inner: S, state: Arc<LayerState<St>>) -> Self {
        Self { inner, state, mode: PhantomData }
    }

    /// Returns the service inside the layer.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the service inside the layer, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Removes the layer and returns the service inside.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, St, M, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S, St, M>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    St: Store,
    M: BodyMode<ResBody>,
{
    type Response = Response<M::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, St, M, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        match admit(&self.state, &RequestHead::of(&request)) {
            Admission::Pass(passed) => {
                if let Some(passed) = &passed {
                    passed.prepare(&self.state, request.extensions_mut());
                }
                let has_work = passed.is_some() || self.state.has_cost_headers();
                let work = has_work.then(|| (Arc::clone(&self.state), passed));
                ResponseFuture::running(self.inner.call(request), work)
            }
            Admission::Respond(response) => ResponseFuture::rejected(response),
            Admission::Wait(waiting) => self.hold(request, waiting),
        }
    }
}

impl<S: Clone, St: Store, M> RateLimit<S, St, M> {
    #[cold]
    fn hold<B>(&mut self, request: Request<B>, waiting: Waiting) -> ResponseFuture<S, St, M, B>
    where
        S: Service<Request<B>>,
    {
        // The request takes the instance that is ready. If it may wait for long, the place in the
        // service is free for other requests, and it takes another instance.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let is_ready = !self.state.may_wait();
        if !is_ready {
            inner = self.inner.clone();
        }
        ResponseFuture::held(Arc::clone(&self.state), inner, is_ready, request, waiting)
    }
}

/// Written by hand, because a derived one would ask for `St: Clone` to clone a pointer.
impl<S: Clone, St, M> Clone for RateLimit<S, St, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.state))
    }
}

debug_fields!([S: fmt::Debug, St, M] RateLimit<S, St, M>, inner);
