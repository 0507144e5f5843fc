//! The middleware.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate_core::{Micros, Store};
use tower_service::Service;

use super::future::ResponseFuture;
use super::question::{Asked, Step};
use super::queued::Queued;
use super::rules::Rules;
use super::ruling::Ruling;
use crate::Head;
use crate::body::{AnyBody, BodyMode};

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
///
/// Clones share one limit with each other and with the layer.
pub struct RateLimit<S, St, M = AnyBody> {
    inner: S,
    rules: Arc<Rules<St>>,
    mode: PhantomData<M>,
}

impl<S, St, M> RateLimit<S, St, M> {
    pub(super) fn new(inner: S, rules: Arc<Rules<St>>) -> Self {
        Self { inner, rules, mode: PhantomData }
    }

    /// The service inside.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    #[cfg(feature = "metrics")]
    pub(super) const fn rules(&self) -> &Arc<Rules<St>> {
        &self.rules
    }

    /// The service inside, without the limit.
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

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let ruling = match self.rules.ask(&Head::of(&request)) {
            Step::Await(asked) if asked.waits() => return self.wait(request, asked),
            Step::Await(asked) => {
                let inner = self.take_ready();
                let rules = Arc::clone(&self.rules);
                return ResponseFuture::undecided(inner, rules, request, asked);
            }
            Step::Follow(ruling) => ruling,
        };
        match ruling {
            Ruling::Pass => {
                let future = self.inner.call(request);
                if self.rules.cost_headers.is_empty() {
                    return ResponseFuture::passing(future);
                }
                ResponseFuture::told(future, Arc::clone(&self.rules), None)
            }
            Ruling::Admit { admitted, delay: Micros::ZERO, .. } => {
                self.rules.show(request.extensions_mut(), &admitted);
                let future = self.inner.call(request);
                if !self.rules.tells() {
                    return ResponseFuture::passing(future);
                }
                ResponseFuture::told(future, Arc::clone(&self.rules), Some(admitted))
            }
            Ruling::Admit { admitted, delay, charged } => {
                // A place of this service that is not used while the request waits would be
                // lacking to others, so it is let go.
                drop(self.take_ready());
                let queued = Queued::new(&self.rules, &admitted.verdict, delay, charged);
                let rules = Arc::clone(&self.rules);
                ResponseFuture::queued(self.inner.clone(), rules, request, admitted, queued)
            }
            Ruling::Wait(asked) => self.wait(request, asked),
            Ruling::Refuse(response) => {
                // Nor is the place of a request that goes no further kept from others.
                drop(self.take_ready());
                ResponseFuture::refused(response)
            }
        }
    }
}

impl<S: Clone, St: Store, M> RateLimit<S, St, M> {
    /// The request waits, and leaves its place in the service to others.
    fn wait<B>(&mut self, request: Request<B>, asked: Asked<St>) -> ResponseFuture<S, St, M, B>
    where
        S: Service<Request<B>>,
    {
        drop(self.take_ready());
        let rules = Arc::clone(&self.rules);
        ResponseFuture::waiting(self.inner.clone(), rules, request, asked)
    }
}

impl<S: Clone, St, M> RateLimit<S, St, M> {
    /// The inner service that has been polled ready, leaving a clone that has not.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

/// Written by hand, because a derived one would ask for `St: Clone` to clone a pointer.
impl<S: Clone, St, M> Clone for RateLimit<S, St, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.rules))
    }
}

impl<S: fmt::Debug, St, M> fmt::Debug for RateLimit<S, St, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
