//! Waits for a call's permit.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{Cost, Micros, Store};
use tollgate_engine::{AppliedLimit, Charges, Rejection};

use super::call::Acquire;
use super::error::{AcquireError, Refusal};
use super::learn::Turn;
use super::permit::Permit;
use super::state::State;
use crate::drive::{Decided, Progress};
use crate::layer::Verdicts;
use crate::tier::lookup::{Refusal as Refused, Terms};

impl<St: Store> Acquire<St> {
    /// Waits for the permit. See [`Limiter::acquire`](super::Limiter::acquire).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn acquire(mut self) -> Result<Permit<St>, AcquireError> {
        if let Some((pause, _)) = self.state.face.pause {
            self.push_own(pause, Cost::ONE);
        }
        if let Some(rate) = &self.state.face.rate {
            self.push_own(rate.number, Cost::ZERO);
        }
        if let Some(error) = self.invalid {
            return Err(error);
        }
        // Few reads of the clock, because each takes longer than a decision in memory.
        let started = Instant::now();
        let mut asked = started;
        if self.state.face.looks_up() {
            apply_own(&self.state, &mut self.charges, self.patience).await?;
            asked = Instant::now();
        }
        if self.deadline.is_none() {
            self.deadline = started.checked_add(self.longest_wait().into());
        }
        loop {
            let left = self.deadline.map(|at| at.saturating_duration_since(asked).into());
            let patience = left.unwrap_or(Micros::MAX);
            let mut decided = Decided { charges: self.charges.clone(), follow_up: None };
            decided.charges.iter_mut().for_each(|applied| applied.patience = patience);
            let decided = attempt(&self.state, decided, patience).await?;
            let mut unused = Unused::new(Permit::new(self, decided));
            let turn = unused.turn(asked).await;
            let permit = unused.used();
            self = match turn {
                Turn::Used => return Ok(permit),
                // The later calls retain their instants, so this call needs a new instant.
                Turn::Paused => permit.into_refunded().await,
                Turn::Unused => permit.into_unused().await,
            };
            asked = Instant::now();
        }
    }

    /// Returns `None` instead of waiting. See [`Limiter::try_acquire`](super::Limiter::try_acquire).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_acquire(mut self) -> Result<Option<Permit<St>>, AcquireError> {
        self.patience = Micros::ZERO;
        match self.acquire().await {
            Ok(permit) => Ok(Some(permit)),
            Err(error @ AcquireError::Denied(_)) if error.retry_after().is_none() => Err(error),
            Err(
                AcquireError::Denied(_) | AcquireError::TooLate(_) | AcquireError::QueueFull(_),
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<St: Store> Permit<St> {
    /// Acquires a permit for the same call again, because the service has denied it. The charge
    /// stands.
    ///
    /// The retry queues like a new call, so it leaves after a pause that [`learn`](Self::learn) has
    /// started, and keeps its deadline ([`Acquire::within`]). It is also charged to the
    /// [retry budget](super::LimiterBuilder::retries) of all processes. Repeat only calls that do no
    /// harm if the service has already executed them.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use http::Response;
    /// use tollgate::feedback::Feedback;
    /// use tollgate::key::Key;
    /// use tollgate::{Limiter, MemoryStore};
    /// # async fn send() -> Response<()> { Response::new(()) }
    ///
    /// async fn call(limiter: &Limiter<MemoryStore>) -> Result<Response<()>, Box<dyn std::error::Error>> {
    ///     let call = limiter.request().all(&Key::from("account"), 1);
    ///     let mut permit = call.within(Duration::from_secs(60)).acquire().await?;
    ///     loop {
    ///         let response = send().await;
    ///         let feedback = Feedback::read(response.status(), response.headers(), SystemTime::now());
    ///         permit.learn(&feedback).await?;
    ///         if !feedback.is_denial() {
    ///             return Ok(response);
    ///         }
    ///         permit = permit.retry().await?;
    ///     }
    /// }
    /// # let _ = call;
    /// ```
    ///
    /// # Errors
    /// See [`AcquireError`]. Without a budget it is [`AcquireError::NoRetryBudget`]. If the budget is
    /// used up it is [`AcquireError::RetryBudget`], which charges nothing.
    pub async fn retry(self) -> Result<Self, AcquireError> {
        let Self { call, decided } = self;
        // A concurrency limit must not count the previous attempt any more.
        drop(decided);
        call.again().acquire().await
    }
}

/// A permit that is refunded if it is dropped before the call.
pub(super) struct Unused<St: Store>(Option<Permit<St>>);

impl<St: Store> Unused<St> {
    pub(super) const fn new(permit: Permit<St>) -> Self {
        Self(Some(permit))
    }

    /// The call happens.
    pub(super) fn used(mut self) -> Permit<St> {
        self.0.take().expect("a permit is taken once")
    }

    async fn turn(&mut self, asked: Instant) -> Turn {
        match &mut self.0 {
            Some(permit) => permit.turn(asked).await,
            None => Turn::Used,
        }
    }
}

impl<St: Store> Drop for Unused<St> {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.refund();
        }
    }
}

/// Applies the keys' own quotas. Look-ups together take no longer than `patience`.
async fn apply_own<St>(
    state: &State<St>,
    charges: &mut Charges,
    patience: Micros,
) -> Result<(), AcquireError> {
    let started = Instant::now();
    let mut unlimited = SmallVec::<[u8; 1]>::new();
    for applied in charges.iter_mut() {
        let left = patience.get().saturating_sub(Micros::from(started.elapsed()).get());
        match state.face.terms(&state.limits, applied, Micros::new(left)).await {
            Some(Terms::Refused(Refused::Unknown)) => return Err(AcquireError::UnknownClient),
            Some(Terms::Refused(Refused::LookUpFailed)) => return Err(AcquireError::LookUpFailed),
            Some(Terms::Own(own)) => applied.own = Some(own),
            Some(Terms::Tier(_)) => applied.own = None,
            Some(Terms::Unlimited) => unlimited.push(applied.limit),
            None => {}
        }
    }
    if !unlimited.is_empty() {
        let all = std::mem::take(charges);
        let limited = all.iter().filter(|applied| !unlimited.contains(&applied.limit));
        limited.for_each(|applied| charges.push(applied.clone(), &state.limits));
    }
    Ok(())
}

async fn attempt<St: Store>(
    state: &Arc<State<St>>,
    mut decided: Decided,
    patience: Micros,
) -> Result<Decided, AcquireError> {
    if state.face.closed.is_closed() {
        return Err(AcquireError::Closed);
    }
    if decided.charges.is_empty() {
        return Ok(decided);
    }
    let timer = state.telemetry.start(&state.limits, &decided.charges, || None);
    let arrival = state.limits.may_wait().then(|| state.face.queue.arrive_alone());
    let mut waiting = match state.decide(&mut decided, timer, arrival, patience) {
        Progress::Pass => return Ok(decided),
        Progress::Reject(rejection) => return Err(error(state, rejection, &decided)),
        Progress::Wait(waiting) => waiting,
    };
    let mut closing = pin!(state.face.closed.acquire());
    let judged = poll_fn(|cx| match closing.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => waiting.as_mut().poll(cx).map(Some),
    });
    match judged.await {
        None => Err(AcquireError::Closed),
        Some(Ok(admitted)) => Ok(admitted.run()),
        Some(Err((decided, rejection))) => Err(error(state, rejection, &decided)),
    }
}

fn error<St: Store>(state: &State<St>, rejection: Rejection, decided: &Decided) -> AcquireError {
    let refusal = || Refusal::new(Verdicts::of(&state.limits, &decided.charges));
    let is_budget = |it: &AppliedLimit| Some(usize::from(it.limit)) == state.face.retries;
    match rejection {
        Rejection::Denied
            if decided.charges.iter().any(|it| is_budget(it) && it.decision.denies()) =>
        {
            AcquireError::RetryBudget(refusal())
        }
        Rejection::Denied => AcquireError::Denied(refusal()),
        Rejection::TooLate => AcquireError::TooLate(refusal()),
        Rejection::QueueFull => AcquireError::QueueFull(refusal()),
        Rejection::Undecided(error) => AcquireError::Store(*error),
    }
}
