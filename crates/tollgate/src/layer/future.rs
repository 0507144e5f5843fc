//! The response future, and requests that wait before they reach the service.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tollgate_core::Store;
use tower_service::Service;

use super::admit::{Admission, admit};
use super::look_ups::WaitingLookUps;
use super::respond::{self, OwnResponse};
use super::state::{Http, LayerState};
use crate::RequestHead;
use crate::body::{BodyMode, InFlight};
use crate::drive::{Admitted, Decided, Driver, Waiting};

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
    /// Most requests run immediately. A waiting request is boxed, because this future is moved and
    /// allocated for each request.
    #[project = StageProjection]
    pub(super) enum Stage<S, St, B>
    where
        S: Service<Request<B>>,
        St: Store,
    {
        Held { held: Option<Box<HeldRequest<S, St, B>>> },
        Running { #[pin] future: S::Future, work: Option<ResponseWork<St>> },
        Rejected { response: Option<OwnResponse> },
    }
}

/// The state that the layer needs for the response.
type ResponseWork<St> = (Arc<LayerState<St>>, Decided);

pub(super) struct HeldRequest<S, St: Store, B> {
    layer: Arc<LayerState<St>>,
    inner: S,
    is_ready: bool,
    request: Request<B>,
    stage: HeldStage<St>,
}

pub(super) enum HeldStage<St: Store> {
    LookingUp(WaitingLookUps),
    Waiting(Waiting<St, Http>),
    /// The request passed, but the service may not be ready.
    Passed(Admitted<St, Http>),
}

impl<S, St, M, B> ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    #[inline(always)]
    pub(super) const fn new(stage: Stage<S, St, B>) -> Self {
        Self { stage, mode: PhantomData }
    }

    pub(super) fn held(
        layer: Arc<LayerState<St>>,
        inner: S,
        is_ready: bool,
        request: Request<B>,
        stage: HeldStage<St>,
    ) -> Self {
        let held = HeldRequest { layer, inner, is_ready, request, stage };
        Self::new(Stage::Held { held: Some(Box::new(held)) })
    }
}

impl<S, St, B> HeldRequest<S, St, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    /// Ready when the request may run, or with the response if it is rejected.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<OwnResponse>, S::Error>> {
        while let HeldStage::LookingUp(look_ups) = &mut self.stage {
            let look_ups = ready!(look_ups.as_mut().poll(cx));
            let (mut decided, head) = (Decided::default(), RequestHead::of(&self.request));
            self.stage = match admit(&self.layer, &head, &mut decided, Some(look_ups)) {
                Admission::Pass => HeldStage::Passed(Admitted::new(&self.layer, decided)),
                Admission::Respond(response) => return Poll::Ready(Ok(Some(response))),
                Admission::Wait(waiting) => HeldStage::Waiting(waiting),
                Admission::LookUp(look_ups) => HeldStage::LookingUp(look_ups),
            };
        }
        if let HeldStage::Waiting(waiting) = &mut self.stage {
            match ready!(waiting.as_mut().poll(cx)) {
                Ok(admitted) => self.stage = HeldStage::Passed(admitted),
                Err((decided, rejection)) => {
                    let (charges, head) = (&decided.charges, RequestHead::of(&self.request));
                    let response = respond::reject(&self.layer, charges, &rejection, &head);
                    return Poll::Ready(Ok(Some(response)));
                }
            }
        }
        if !self.is_ready {
            ready!(self.inner.poll_ready(cx))?;
        }
        Poll::Ready(Ok(None))
    }

    fn run(mut self) -> Stage<S, St, B> {
        let HeldStage::Passed(admitted) = self.stage else { unreachable!("it has passed") };
        let decided = admitted.run();
        let Driver { limits, face: http, .. } = &*self.layer;
        http.hand_over(limits, &decided, self.request.extensions_mut());
        let has_work = http.has_work(&decided);
        let future = self.inner.call(self.request);
        Stage::Running { future, work: has_work.then_some((self.layer, decided)) }
    }
}

impl<S, St, M, B, ResBody> Future for ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
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
                    let mut polled = future.poll(cx);
                    let Poll::Ready(response) = &mut polled else { return Poll::Pending };
                    // Taken before the result is checked, so that a failed request returns its
                    // permits now.
                    let work = work.take();
                    let mut in_flight = InFlight::default();
                    if let (Ok(response), Some((layer, decided))) = (response, work) {
                        in_flight = respond::finish(&layer, response, decided);
                    }
                    return M::respond(polled, in_flight);
                }
                StageProjection::Rejected { response } => {
                    let response = response.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Ok(response.map(M::full)));
                }
                StageProjection::Held { held } => {
                    let polled = ready!(held.as_mut().expect(POLLED_AGAIN).poll(cx));
                    // Taken first: if the service fails, the permits are returned now.
                    let held = held.take().expect(POLLED_AGAIN);
                    match polled? {
                        Some(response) => Stage::Rejected { response: Some(response) },
                        None => held.run(),
                    }
                }
            };
            stage.set(next);
        }
    }
}

debug_fields!([S: Service<Request<B>>, St: Store, M, B] ResponseFuture<S, St, M, B>);

/// A future must not be polled after it was ready, because its response has been taken.
const POLLED_AGAIN: &str = "`ResponseFuture` polled after completion";
