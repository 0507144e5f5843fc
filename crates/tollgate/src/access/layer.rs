//! The layer that applies the blocklist and the allowlist.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{AccessLists, Listed};
use crate::body::{AnyBody, BodyMode, InFlight, SameBody};
use crate::denial::{
    Denial, DenialResponse, IntoDenialResponse, Problem, ResponseFormat, ResponseFromFn,
};
use crate::grpc::GrpcServices;
use crate::head::RequestHead;
use crate::key::FaultLog;
use crate::paths::Paths;

/// Forbids requests on the blocklist with 403 ([`Reason::DeniedSubject`](crate::denial::Reason)),
/// and marks requests on the allowlist.
///
/// Put it outside of a [`RateLimitLayer`](crate::RateLimitLayer) with
/// `.exempt(access::is_allowed)`, which forwards marked requests without calling the store.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tollgate::access::{self, AccessLayer, AccessLists, SubjectList};
/// use tollgate::key::ClientIp;
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let lists = AccessLists::new().addresses_by(ClientIp::peer());
/// let blocklist: SubjectList = "203.0.113.0/24\n2001:db8:bad::/48".parse()?;
/// lists.replace(&blocklist, &SubjectList::new().network("198.51.100.7")?)?;
/// let policy = Policy::sliding_window_log("client", Quota::per_minute(100))?;
/// let limit = RateLimitLayer::builder(MemoryStore::new())
///     .limit(Limit::new(policy, ClientIp::peer()))
///     .exempt(access::is_allowed)
///     .build()?;
/// let app = Router::new().route("/", get(|| async { "hello" }));
/// // The layer that is added last is the outermost.
/// let app: Router = app.layer(limit).layer(AccessLayer::new(&lists));
/// // Later: new lists apply to all following requests.
/// lists.replace(&SubjectList::new(), &SubjectList::new())?;
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AccessLayer<M = SameBody> {
    state: Arc<AccessState>,
    mode: PhantomData<M>,
}

/// Clones share the fault log.
#[derive(Clone)]
struct AccessState {
    lists: AccessLists,
    response: Arc<dyn DenialResponse>,
    grpc: GrpcServices,
    faults: Arc<FaultLog>,
}

#[derive(Clone, Copy, Debug)]
struct Allowed;

/// Returns whether an outer [`AccessLayer`] found the request on its allowlist.
pub fn is_allowed(head: &RequestHead<'_>) -> bool {
    head.extensions.get::<Allowed>().is_some()
}

impl AccessLayer {
    /// Makes a layer that applies these lists. `lists` can replace their contents later.
    pub fn new(lists: &AccessLists) -> Self {
        let state = AccessState {
            lists: lists.clone(),
            response: Arc::new(Problem::default()),
            grpc: GrpcServices::None,
            faults: Arc::default(),
        };
        Self { state: Arc::new(state), mode: PhantomData }
    }

    /// Returns the same layer for services with a body type that does not implement `HoldPermits`.
    /// See [`RateLimitLayer::any_body`](crate::RateLimitLayer::any_body).
    #[must_use]
    pub fn any_body(self) -> AccessLayer<AnyBody> {
        AccessLayer { state: self.state, mode: PhantomData }
    }
}

impl<M> AccessLayer<M> {
    /// Sets the response to a forbidden request. See
    /// [`RateLimitLayerBuilder::on_denied`](crate::layer::RateLimitLayerBuilder::on_denied).
    #[must_use]
    pub fn on_denied<F, R, Via>(self, response: F) -> Self
    where
        F: Fn(&Denial<'_>) -> R + Send + Sync + 'static,
        R: IntoDenialResponse<Via>,
        Via: 'static,
    {
        self.denial_response(ResponseFromFn(response, PhantomData))
    }

    /// Sets the response to a forbidden request as a [`DenialResponse`].
    #[must_use]
    pub fn denial_response(mut self, response: impl DenialResponse) -> Self {
        Arc::make_mut(&mut self.state).response = Arc::new(response);
        self
    }

    /// Declares that all inner services are gRPC, or none. See
    /// [`RateLimitLayerBuilder::grpc`](crate::layer::RateLimitLayerBuilder::grpc).
    #[must_use]
    pub fn grpc(mut self, all: bool) -> Self {
        Arc::make_mut(&mut self.state).grpc = GrpcServices::all(all);
        self
    }

    /// Declares that the services at these paths are gRPC. See
    /// [`RateLimitLayerBuilder::grpc_at`](crate::layer::RateLimitLayerBuilder::grpc_at).
    #[must_use]
    pub fn grpc_at(mut self, paths: Paths) -> Self {
        Arc::make_mut(&mut self.state).grpc = GrpcServices::at(paths);
        self
    }
}

impl AccessState {
    fn check(&self, head: &RequestHead<'_>) -> Result<Listed, Box<Response<Bytes>>> {
        let denial = match self.lists.find(head) {
            Ok(Listed::Blocked) => Denial::denied_subject(),
            Ok(listed) => return Ok(listed),
            Err(error) => {
                self.faults.report(&error);
                Denial::misconfigured()
            }
        };
        tracing::debug!(target: "tollgate", reason = denial.reason().code(), "deny");
        let denial = denial.of_request(*head, |_| None);
        Err(Box::new(denial.respond(ResponseFormat::among(head, &self.grpc), &*self.response)))
    }
}

impl<S, M> Layer<S> for AccessLayer<M> {
    type Service = Access<S, M>;

    fn layer(&self, inner: S) -> Access<S, M> {
        Access { inner, state: Arc::clone(&self.state), mode: PhantomData }
    }
}

/// A service behind an [`AccessLayer`].
#[derive(Clone, Debug)]
pub struct Access<S, M = SameBody> {
    inner: S,
    state: Arc<AccessState>,
    mode: PhantomData<M>,
}

impl<S, M, ReqBody, ResBody> Service<Request<ReqBody>> for Access<S, M>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    M: BodyMode<ResBody>,
{
    type Response = Response<M::Body>;
    type Error = S::Error;
    type Future = AccessFuture<S::Future, M>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        match self.state.check(&RequestHead::of(&request)) {
            Err(response) => {
                AccessFuture { future: None, response: Some(response), mode: PhantomData }
            }
            Ok(listed) => {
                if listed == Listed::Allowed {
                    request.extensions_mut().insert(Allowed);
                }
                let future = Some(self.inner.call(request));
                AccessFuture { future, response: None, mode: PhantomData }
            }
        }
    }
}

pin_project! {
    /// The response of a service behind an [`AccessLayer`].
    pub struct AccessFuture<F, M> {
        // `None` if the request is forbidden.
        #[pin]
        future: Option<F>,
        response: Option<Box<Response<Bytes>>>,
        mode: PhantomData<fn() -> M>,
    }
}

impl<F, M, E, ResBody> Future for AccessFuture<F, M>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    M: BodyMode<ResBody>,
{
    type Output = Result<Response<M::Body>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.future.as_pin_mut() {
            Some(future) => {
                let response = ready!(future.poll(cx));
                Poll::Ready(response.map(|it| M::respond(it, InFlight::default())))
            }
            None => {
                let response =
                    this.response.take().expect("`AccessFuture` polled after completion");
                Poll::Ready(Ok(response.map(M::full)))
            }
        }
    }
}

debug_fields!(AccessState, lists);
