//! A call that waits for its permit.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Cost, Key, Micros, Store};
use tollgate_engine::{Limits, Rejection};

use super::error::{AcquireError, Refusal};
use super::permit::Permit;
use super::state::State;
use crate::drive::{Decided, Progress};
use crate::layer::Verdicts;

/// A call under several keys, or with its own deadline. Created by
/// [`Limiter::request`](super::Limiter::request).
#[must_use = "call `acquire` or `try_acquire`"]
pub struct Acquire<St: Store> {
    state: Arc<State<St>>,
    decided: Decided,
    patience: Micros,
    /// Why the call cannot be decided.
    invalid: Option<AcquireError>,
}

impl<St: Store> Acquire<St> {
    pub(super) fn new(state: &Arc<State<St>>) -> Self {
        let (state, decided) = (Arc::clone(state), Decided::default());
        Self { state, decided, patience: Micros::MAX, invalid: None }
    }

    /// Charges every policy of the limiter this cost under this key.
    pub fn all(mut self, key: &Key, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        (0..self.state.limits.len()).for_each(|number| self.push(number, key, cost));
        self
    }

    /// Charges the policy with this name. The call is charged under all its keys or not at all.
    pub fn policy(mut self, name: &str, key: &Key, cost: impl Into<Cost>) -> Self {
        let number = self.state.limits.iter().position(|limit| limit.policy.name() == name);
        match number {
            Some(number) => self.push(number, key, cost.into()),
            None => self.invalid = Some(AcquireError::UnknownPolicy(name.to_owned())),
        }
        self
    }

    fn push(&mut self, number: usize, key: &Key, cost: Cost) {
        let limits = &self.state.limits;
        if self.decided.charges.len() == Limits::MAX {
            self.invalid = Some(AcquireError::TooManyCharges);
            return;
        }
        self.decided.charges.push(self.state.face.applied(limits, number, key, cost), limits);
    }

    /// Sets the longest wait, if it is shorter than the limiter's.
    pub fn within(mut self, wait: Duration) -> Self {
        self.patience = wait.into();
        self
    }

    /// Waits for the permit. See [`Limiter::acquire`](super::Limiter::acquire).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn acquire(mut self) -> Result<Permit<St>, AcquireError> {
        self.add_pause();
        if let Some(error) = self.invalid {
            return Err(error);
        }
        let limits = &self.state.limits;
        let longest = self.decided.charges.iter().filter_map(|it| {
            let policy = limits.policy(it);
            policy.max_queue_time().filter(|_| !policy.is_penalty())
        });
        self.patience = longest.min().map_or(self.patience, |longest| longest.min(self.patience));
        let started = Instant::now();
        loop {
            let mut decided = Decided { charges: self.decided.charges.clone(), follow_up: None };
            let elapsed = Micros::from(started.elapsed());
            let patience = Micros::new(self.patience.get().saturating_sub(elapsed.get()));
            decided.charges.iter_mut().for_each(|applied| applied.patience = patience);
            let asked = Instant::now();
            let unused = Unused(Some(attempt(&self.state, decided, patience).await?));
            if asked.elapsed() < RECHECK || !unused.is_paused().await {
                return Ok(unused.used());
            }
            // The calls behind this one keep their instants, so it asks for a new one.
            drop(unused);
        }
    }

    /// The key of the first charge can be paused.
    fn add_pause(&mut self) {
        let Some((pause, _)) = self.state.face.pause else { return };
        let has_pause = self.decided.charges.iter().any(|it| usize::from(it.limit) == pause);
        // A cost of zero is always allowed.
        if let Some(first) = self.decided.charges.first()
            && first.cost > Cost::ZERO
            && !has_pause
        {
            let key = first.key.clone();
            self.push(pause, &key, Cost::ONE);
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

/// A permit that is refunded if it is dropped before the call.
struct Unused<St: Store>(Option<Permit<St>>);

impl<St: Store> Unused<St> {
    async fn is_paused(&self) -> bool {
        match &self.0 {
            Some(permit) => permit.is_paused().await,
            None => false,
        }
    }

    fn used(mut self) -> Permit<St> {
        self.0.take().expect("a permit is taken once")
    }
}

impl<St: Store> Drop for Unused<St> {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.refund();
        }
    }
}

async fn attempt<St: Store>(
    state: &Arc<State<St>>,
    mut decided: Decided,
    patience: Micros,
) -> Result<Permit<St>, AcquireError> {
    if state.face.closed.is_closed() {
        return Err(AcquireError::Closed);
    }
    if decided.charges.is_empty() {
        return Ok(Permit::new(state, decided));
    }
    let timer = state.telemetry.start(&state.limits, &decided.charges, || None);
    let arrival = state.limits.may_wait().then(|| state.face.queue.arrive_alone());
    let mut waiting = match state.decide(&mut decided, timer, arrival, patience) {
        Progress::Pass => return Ok(Permit::new(state, decided)),
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
        Some(Ok(admitted)) => Ok(Permit::new(state, admitted.run())),
        Some(Err((decided, rejection))) => Err(error(state, rejection, &decided)),
    }
}

/// A key may have been paused while a call was in the queue for this long.
const RECHECK: Duration = Duration::from_secs(1);

fn error<St: Store>(state: &State<St>, rejection: Rejection, decided: &Decided) -> AcquireError {
    let refusal = || Refusal::new(Verdicts::of(&state.limits, &decided.charges));
    match rejection {
        Rejection::Denied => AcquireError::Denied(refusal()),
        Rejection::TooLate => AcquireError::TooLate(refusal()),
        Rejection::QueueFull => AcquireError::QueueFull(refusal()),
        Rejection::Undecided(error) => AcquireError::Store(error),
    }
}

debug_fields!([St: Store] Acquire<St>, patience);
