//! The future of a response, and requests that cannot be answered at once.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tollgate_core::Store;
use tower_service::Service;

use super::action::{Action, OwnResponse, ResponseWork, Waiting};
use super::state::LayerState;
use crate::RequestHead;
use crate::body::{BodyMode, InFlight};

pin_project! {
    /// The response of a service behind a [`RateLimitLayer`](super::RateLimitLayer).
    pub struct ResponseFuture<S, St, M, B>
    where
        S: Service<Request<B>>,
        St: Store,
    {
        #[pin]
        stage: Stage<S, St, B>,
        mode: PhantomData<fn() -> M>,
    }
}

pin_project! {
    /// Most requests run at once. The others are in a box, because this future is moved and
    /// allocated for each request.
    #[project = StageProjection]
    enum Stage<S, St, B>
    where
        S: Service<Request<B>>,
        St: Store,
    {
        Held { held: Option<Box<HeldRequest<S, St, B>>> },
        // The service works on the request.
        Running { #[pin] future: S::Future, work: Option<(Arc<LayerState<St>>, ResponseWork)> },
        Rejected { response: Option<OwnResponse> },
    }
}

pub(super) struct HeldRequest<S, St: Store, B> {
    inner: S,
    is_ready: bool,
    state: Arc<LayerState<St>>,
    request: Request<B>,
    /// `Ok` once it may run.
    progress: Result<ResponseWork, Box<Waiting<St>>>,
}

impl<S, St, M, B> ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    #[inline]
    pub(super) const fn running(
        future: S::Future,
        work: Option<(Arc<LayerState<St>>, ResponseWork)>,
    ) -> Self {
        Self { stage: Stage::Running { future, work }, mode: PhantomData }
    }
}

impl<S, St, M, B> ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>> + Clone,
    St: Store,
{
    pub(super) fn held(
        inner: S,
        state: Arc<LayerState<St>>,
        request: Request<B>,
        action: Action<St>,
    ) -> Self {
        let progress = Ok(ResponseWork::None);
        let mut held = HeldRequest { inner, is_ready: true, state, request, progress };
        let stage = match held.follow(action) {
            Some(response) => Stage::Rejected { response: Some(response) },
            None => Stage::Held { held: Some(Box::new(held)) },
        };
        Self { stage, mode: PhantomData }
    }
}

impl<S, St, B> HeldRequest<S, St, B>
where
    S: Service<Request<B>> + Clone,
    St: Store,
{
    fn follow(&mut self, action: Action<St>) -> Option<OwnResponse> {
        match action {
            Action::Forward(work) => self.progress = Ok(work),
            Action::Wait(waiting) => {
                if !waiting.is_short() {
                    // The place in the service is free for others while this request waits.
                    self.inner = self.inner.clone();
                    self.is_ready = false;
                }
                self.progress = Err(waiting);
            }
            Action::Respond(response) => return Some(response),
        }
        None
    }

    /// Ready when the request may run, or with the response if it ends here.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<OwnResponse>, S::Error>> {
        loop {
            let action = match &mut self.progress {
                Ok(_) if self.is_ready => return Poll::Ready(Ok(None)),
                Ok(_) => {
                    ready!(self.inner.poll_ready(cx))?;
                    self.is_ready = true;
                    continue;
                }
                Err(waiting) => match &mut **waiting {
                    Waiting::Decision { answer, context } => {
                        let answer = ready!(answer.as_mut().poll(cx));
                        self.state.conclude(answer, context, &RequestHead::of(&self.request))
                    }
                    Waiting::Turn { turn, guard, work } => {
                        ready!(turn.as_mut().poll(cx));
                        if let Some((guard, _)) = guard.take() {
                            guard.disarm();
                        }
                        Action::Forward(mem::take(work))
                    }
                },
            };
            if let Some(response) = self.follow(action) {
                return Poll::Ready(Ok(Some(response)));
            }
        }
    }

    fn run(mut self) -> Stage<S, St, B> {
        let work = self.progress.unwrap_or_default();
        let expose_verdicts = self.state.options.expose_verdicts;
        work.prepare(self.request.extensions_mut(), expose_verdicts);
        Stage::Running { future: self.inner.call(self.request), work: Some((self.state, work)) }
    }
}

impl<S, St, M, B, ResBody> Future for ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    St: Store,
    M: BodyMode<ResBody>,
{
    type Output = Result<Response<M::Body>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Running { future, work } => {
                    let mut response = ready!(future.poll(cx));
                    // Taken first: the permits of a request that failed are returned now.
                    let work = work.take();
                    let mut in_flight = InFlight::default();
                    if let (Ok(response), Some((state, work))) = (&mut response, work) {
                        in_flight = state.finish(response, work);
                    }
                    return Poll::Ready(response.map(|response| M::respond(response, in_flight)));
                }
                StageProjection::Rejected { response } => {
                    let response = response.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Ok(response.map(M::full)));
                }
                StageProjection::Held { held } => {
                    match ready!(held.as_mut().expect(POLLED_AGAIN).poll(cx))? {
                        Some(response) => Stage::Rejected { response: Some(response) },
                        None => held.take().expect(POLLED_AGAIN).run(),
                    }
                }
            };
            stage.set(next);
        }
    }
}

debug_fields!([S: Service<Request<B>>, St: Store, M, B] ResponseFuture<S, St, M, B>);

/// A future must not be polled after it was ready; its response has been taken.
const POLLED_AGAIN: &str = "`ResponseFuture` polled after completion";
