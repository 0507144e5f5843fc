//! The layer and its service, where each request starts.

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
use super::future::{HeldStage, ResponseFuture, Stage};
use super::state::LayerState;
use crate::body::{AnyBody, BodyMode, SameBody};
use crate::drive::Decided;
use crate::{Limit, RequestHead};

/// Tower layer that limits the requests to its inner service.
///
/// **Clones of a layer, and all its services, share their limits**, because the state is in the
/// store. Two layers over the same store share the state of policies with the same name, and charge
/// a request twice.
///
/// # Decisions
///
/// * The layer forwards CORS preflights and [exempt](crate::layer::RateLimitLayerBuilder::exempt)
///   requests without calling the store.
/// * Each [`Limit`] that applies has a key and a cost. The store decides all limits in one step: if
///   any limit denies the request, none is charged.
/// * The layer itself responds to denied requests ([`denial`](crate::denial)). It passes on the
///   service's errors unchanged.
/// * A leaky bucket in queue mode, and a limit with
///   [`Mode::Wait`](crate::limit::Mode), delay requests. This needs a tokio runtime
///   with its timer enabled.
/// * A request holds its permits
///   ([`Policy::concurrent_requests`](crate::Policy::concurrent_requests)) until its response
///   completes, fails or is dropped. A task renews them. If a request upgrades its connection (a
///   WebSocket), its permits are returned with the response, unless the handler holds its
///   [`InFlight`](crate::body::InFlight).
/// * While the store cannot decide, each policy follows its
///   [`OnStoreError`](crate::policy::OnStoreError).
///
/// # Deployment
///
/// * Put CORS *outside* of this layer (in axum: added after it), so denials have CORS headers.
///   It must expose the [rate limit headers](crate::headers::EXPOSED) to scripts.
/// * Put authentication for [`key::FromExtension`](crate::key::FromExtension) outside, too, and a
///   limit by address outside of the authentication.
/// * Nested layers decide independently: the outer layer's charge is not refunded if the inner
///   layer denies the request. Put policies that must be charged together into the same layer.
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

    /// Returns the same layer for services with a body type that does not implement
    /// [`HoldPermits`](crate::body::HoldPermits), such as hyper's `Incoming`. Responses then have a
    /// [`Body`](crate::body::Body) around the service's body.
    #[must_use]
    pub fn any_body(self) -> RateLimitLayer<St, AnyBody> {
        RateLimitLayer { state: self.state, mode: PhantomData }
    }
}

impl<St: Store, M> RateLimitLayer<St, M> {
    /// Returns the layer's store, to read, reset or settle.
    pub fn store(&self) -> &St {
        &self.state.store
    }

    /// Returns the layer's limits, in the order in which they were added.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.state.face.limits.iter().map(|compiled| &compiled.limit)
    }
}

impl<S, St: Store, M> Layer<S> for RateLimitLayer<St, M> {
    type Service = RateLimit<S, St, M>;

    fn layer(&self, inner: S) -> RateLimit<S, St, M> {
        RateLimit::new(inner, Arc::clone(&self.state))
    }
}

/// Implemented by hand, because a derived `Clone` would require `St: Clone` just to clone a
/// pointer.
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
/// Clones share the same limits with each other and with the layer.
pub struct RateLimit<S, St, M = SameBody> {
    inner: S,
    pub(super) state: Arc<LayerState<St>>,
    mode: PhantomData<M>,
}

impl<S, St, M> RateLimit<S, St, M> {
    pub(super) fn new(inner: S, state: Arc<LayerState<St>>) -> Self {
        Self { inner, state, mode: PhantomData }
    }

    /// Returns a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Removes the layer and returns the inner service.
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
        let mut decided = Decided::default();
        match admit(&self.state, &RequestHead::of(&request), &mut decided, None) {
            Admission::Pass => {
                let http = &self.state.face;
                http.hand_over(&self.state.limits, &decided, request.extensions_mut());
                if !http.has_work(&decided) {
                    // Separate, because an empty `work` is moved like a full one.
                    let future = self.inner.call(request);
                    return ResponseFuture::new(Stage::Running { future, work: None });
                }
                let work = Some((Arc::clone(&self.state), decided));
                ResponseFuture::new(Stage::Running { future: self.inner.call(request), work })
            }
            Admission::Respond(response) => {
                ResponseFuture::new(Stage::Rejected { response: Some(response) })
            }
            Admission::Wait(waiting) => {
                self.hold(request, HeldStage::Waiting(waiting), self.state.may_wait())
            }
            Admission::LookUp(look_ups) => self.hold(request, HeldStage::LookingUp(look_ups), true),
        }
    }
}

impl<S: Clone, St: Store, M> RateLimit<S, St, M> {
    #[cold]
    fn hold<B>(
        &mut self,
        request: Request<B>,
        stage: HeldStage<St>,
        may_wait: bool,
    ) -> ResponseFuture<S, St, M, B>
    where
        S: Service<Request<B>>,
    {
        // The request takes the ready instance. But if it may wait for long, drop this instance, so
        // other requests can use the capacity it reserved, and take another instance later.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        if may_wait {
            inner = self.inner.clone();
        }
        ResponseFuture::held(Arc::clone(&self.state), inner, !may_wait, request, stage)
    }
}

impl<S: Clone, St, M> Clone for RateLimit<S, St, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.state))
    }
}

debug_fields!([S: fmt::Debug, St, M] RateLimit<S, St, M>, inner);
