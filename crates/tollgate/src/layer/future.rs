//! What becomes of a request that cannot be answered at once.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tollgate_core::{Micros, Store};
use tower_service::Service;

use super::excess::Answer;
use super::question::{Asked, Question};
use super::queued::Queued;
use super::rules::Rules;
use super::ruling::{Admitted, Ruling};
use super::verdicts::Verdicts;
use crate::Head;
use crate::body::{BodyMode, InFlight};

pin_project! {
    /// The response of a service behind a [`RateLimitLayer`](super::RateLimitLayer).
    pub struct ResponseFuture<S, St, M, B>
    where
        S: Service<Request<B>>,
        St: Store,
    {
        #[pin]
        state: State<S, St, B>,
        mode: PhantomData<fn() -> M>,
    }
}

pin_project! {
    /// A request goes down this list, mostly from `Running` at once. What the others need
    /// besides is in a box, because this future is moved and allocated for each request.
    #[project = StateProjection]
    enum State<S, St, B>
    where
        S: Service<Request<B>>,
        St: Store,
    {
        // The store has not answered yet.
        Undecided { pending: Option<Box<Pending<S, St, B>>>, answer: Option<Answer<St>> },
        // The request waits for its turn in a queue.
        Waiting { pending: Option<Box<Pending<S, St, B>>>, admitted: Option<Admitted>, queued: Option<Queued<St>> },
        // Its turn has come, and the service inside is asked whether it is ready. Without a
        // verdict it passes because the store fails.
        Readying { pending: Option<Box<Pending<S, St, B>>>, admitted: Option<Admitted> },
        // The service inside works on it. The rest is for a layer that changes its response.
        Running { #[pin] future: S::Future, told: Option<(Arc<Rules<St>>, Option<Admitted>)> },
        // It was refused.
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

/// A request and where it is to go.
struct Pending<S, St, B> {
    inner: S,
    /// Whether `inner` has been polled ready.
    ready: bool,
    rules: Arc<Rules<St>>,
    request: Request<B>,
    /// What the store was asked, until it has answered.
    question: Option<Question>,
}

impl<S, St, M, B> ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    const fn at(state: State<S, St, B>) -> Self {
        Self { state, mode: PhantomData }
    }

    /// The request is none of the layer's business.
    pub(super) const fn passing(future: S::Future) -> Self {
        Self::at(State::Running { future, told: None })
    }

    /// The service has the request, which was admitted or passes without a verdict. The layer
    /// changes its response.
    pub(super) const fn told(
        future: S::Future,
        rules: Arc<Rules<St>>,
        admitted: Option<Admitted>,
    ) -> Self {
        Self::at(State::Running { future, told: Some((rules, admitted)) })
    }

    /// The request was refused.
    pub(super) const fn refused(response: Box<Response<Bytes>>) -> Self {
        Self::at(State::Refused { response: Some(response) })
    }

    /// The store is being asked; `inner` is ready.
    pub(super) fn undecided(
        inner: S,
        rules: Arc<Rules<St>>,
        request: Request<B>,
        asked: Asked<St>,
    ) -> Self {
        Self::at(Pending { inner, ready: true, rules, request, question: None }.ask(asked))
    }

    /// The request is in the wait queue; `inner` is not ready.
    pub(super) fn waiting(
        inner: S,
        rules: Arc<Rules<St>>,
        request: Request<B>,
        asked: Asked<St>,
    ) -> Self {
        Self::at(Pending { inner, ready: false, rules, request, question: None }.ask(asked))
    }

    /// The request was admitted and has to wait; `inner` is not ready.
    pub(super) fn queued(
        inner: S,
        rules: Arc<Rules<St>>,
        request: Request<B>,
        admitted: Admitted,
        queued: Queued<St>,
    ) -> Self {
        let pending =
            Some(Box::new(Pending { inner, ready: false, rules, request, question: None }));
        let (admitted, queued) = (Some(admitted), Some(queued));
        Self::at(State::Waiting { pending, admitted, queued })
    }
}

impl<S, St, M, B, ResBody> Future for ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    St: Store,
    M: BodyMode<ResBody>,
{
    type Output = Result<Response<M::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Running { future, told } => {
                    let answer = ready!(future.poll(cx));
                    // Taken first: what a request held that failed is not held any longer.
                    let told = told.take();
                    let mut response = answer?;
                    let mut in_flight = InFlight::default();
                    match told {
                        Some((rules, Some(admitted))) => {
                            rules.tell(&mut response, &admitted);
                            let (verdict, held) = admitted.into_parts();
                            if rules.expose_verdicts() {
                                Verdicts::push_outer(response.extensions_mut(), verdict);
                            }
                            in_flight = held;
                        }
                        Some((rules, None)) => rules.remove_costs(response.headers_mut()),
                        None => {}
                    }
                    return Poll::Ready(Ok(response.map(|body| M::inner(body, in_flight))));
                }
                StateProjection::Refused { response } => {
                    let response = response.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Ok(response.map(M::full)));
                }
                StateProjection::Undecided { pending, answer } => {
                    let store = answer.as_mut().expect(POLLED_AGAIN);
                    let answer = ready!(Pin::new(store).poll(cx));
                    let mut pending = pending.take().expect(POLLED_AGAIN);
                    let question = pending.question.take().expect(POLLED_AGAIN);
                    let Pending { rules, request, .. } = &*pending;
                    let ruling = rules.rule(answer, question, &Head::of(request));
                    pending.follow(ruling)
                }
                StateProjection::Waiting { pending, admitted, queued } => {
                    ready!(queued.as_mut().expect(POLLED_AGAIN).turn.as_mut().poll(cx));
                    queued.take().expect(POLLED_AGAIN).leave();
                    State::Readying { pending: pending.take(), admitted: admitted.take() }
                }
                StateProjection::Readying { pending, admitted } => {
                    ready!(pending.as_mut().expect(POLLED_AGAIN).inner.poll_ready(cx))?;
                    let pending = pending.take().expect(POLLED_AGAIN);
                    pending.run(admitted.take())
                }
            };
            state.set(next);
        }
    }
}

impl<S, St, B> Pending<S, St, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    fn ask(self, asked: Asked<St>) -> State<S, St, B> {
        let Asked { answer, question } = asked;
        let pending = Some(Box::new(Self { question: Some(question), ..self }));
        State::Undecided { pending, answer: Some(answer) }
    }
}

impl<S, St, B> Pending<S, St, B>
where
    S: Service<Request<B>> + Clone,
    St: Store,
{
    /// What a ruling means for a request.
    fn follow(mut self: Box<Self>, ruling: Ruling<St>) -> State<S, St, B> {
        match ruling {
            Ruling::Pass => self.enter(None),
            Ruling::Admit { admitted, delay: Micros::ZERO, .. } => self.enter(Some(admitted)),
            Ruling::Admit { admitted, delay, charged } => {
                let queued = Queued::new(&self.rules, &admitted.verdict, delay, charged);
                self.let_go();
                State::Waiting {
                    pending: Some(self),
                    admitted: Some(admitted),
                    queued: Some(queued),
                }
            }
            Ruling::Wait(asked) => {
                self.let_go();
                self.ask(asked)
            }
            Ruling::Refuse(response) => State::Refused { response: Some(response) },
        }
    }

    /// The ready clone is let go, and its place with it.
    fn let_go(&mut self) {
        self.inner = self.inner.clone();
        self.ready = false;
    }

    /// The request goes on as soon as the service is ready.
    fn enter(self: Box<Self>, admitted: Option<Admitted>) -> State<S, St, B> {
        if self.ready {
            self.run(admitted)
        } else {
            State::Readying { pending: Some(self), admitted }
        }
    }

    /// Hands the request to the service, which is ready.
    fn run(mut self, admitted: Option<Admitted>) -> State<S, St, B> {
        if let Some(admitted) = &admitted {
            self.rules.show(self.request.extensions_mut(), admitted);
        }
        let Self { mut inner, rules, request, .. } = self;
        State::Running { future: inner.call(request), told: Some((rules, admitted)) }
    }
}

impl<S, St, M, B> fmt::Debug for ResponseFuture<S, St, M, B>
where
    S: Service<Request<B>>,
    St: Store,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// A future must not be polled after it was ready; what it held has been taken.
const POLLED_AGAIN: &str = "`ResponseFuture` polled after completion";
