//! A call that waits for its permit.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Cost, Key, Micros, Policy, Store};
use tollgate_engine::{AppliedLimit, Charges, Limits, Rejection};

use super::error::{AcquireError, Refusal};
use super::learn::Turn;
use super::permit::Permit;
use super::state::State;
use crate::drive::{Decided, Progress};
use crate::layer::Verdicts;

/// A call under several keys, or with its own deadline. Created by
/// [`Limiter::request`](super::Limiter::request).
#[must_use = "call `acquire` or `try_acquire`"]
pub struct Acquire<St: Store> {
    pub(super) state: Arc<State<St>>,
    /// Undecided.
    pub(super) charges: Charges,
    patience: Micros,
    /// When `patience` ends, from the first wait on.
    deadline: Option<Instant>,
    /// Why the call cannot be decided.
    invalid: Option<AcquireError>,
}

impl<St: Store> Acquire<St> {
    pub(super) fn new(state: &Arc<State<St>>) -> Self {
        let (state, charges) = (Arc::clone(state), Charges::default());
        Self { state, charges, patience: Micros::MAX, deadline: None, invalid: None }
    }

    /// Charges every policy of the limiter this cost under this key.
    pub fn all(mut self, key: &Key, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        (0..self.state.face.policies).for_each(|number| self.push(number, key, cost));
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
        if self.charges.len() == Limits::MAX {
            self.invalid = Some(AcquireError::TooManyCharges);
            return;
        }
        self.charges.push(self.state.face.applied(limits, number, key, cost), limits);
    }

    /// Sets the longest wait, if it is shorter than the limiter's. It counts from the first attempt, so
    /// for [retries](Permit::retry) it includes the calls before them.
    pub fn within(mut self, wait: Duration) -> Self {
        self.patience = wait.into();
        self
    }

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
        if self.deadline.is_none() {
            self.deadline = Instant::now().checked_add(self.longest_wait().into());
        }
        loop {
            let asked = Instant::now();
            let left = self.deadline.map(|at| at.saturating_duration_since(asked).into());
            let patience = left.unwrap_or(Micros::MAX);
            let mut decided = Decided { charges: self.charges.clone(), follow_up: None };
            decided.charges.iter_mut().for_each(|applied| applied.patience = patience);
            let decided = attempt(&self.state, decided, patience).await?;
            let mut unused = Unused::new(Permit::new(self, decided));
            let turn = unused.turn(asked.elapsed() >= RECHECK).await;
            let permit = unused.used();
            self = match turn {
                Turn::Used => return Ok(permit),
                // The later calls retain their instants, so this call needs a new instant.
                Turn::Paused => permit.into_refunded().await,
                Turn::Unused => permit.into_unused().await,
            };
        }
    }

    /// The longest total wait: the caller's wait, or a policy's wait if that is shorter.
    fn longest_wait(&self) -> Micros {
        let rates = self.charges.iter().filter(|it| !self.state.limits.policy(it).is_penalty());
        let waits = rates.flat_map(|it| {
            let limit = self.state.limits.of(it);
            [limit.policy.max_queue_time(), limit.mode.max_wait().map(Micros::from)]
        });
        let waits = waits.flatten().filter(|wait| *wait > Micros::ZERO);
        waits.min().map_or(self.patience, |wait| wait.min(self.patience))
    }

    /// Charges the retry budget, too.
    pub(super) fn again(mut self) -> Self {
        let Some(number) = self.state.face.retries else {
            self.invalid = Some(AcquireError::NoRetryBudget);
            return self;
        };
        // A call that costs more than the budget can be repeated if the budget is full.
        let most = self.state.retries().map_or(1, Policy::capacity);
        // Its unit is the first policy's.
        let first = self.charges.iter().find(|it| it.limit == 0);
        let cost = first.map_or(1, |first| first.cost.get());
        self.push_own(number, Cost::new(cost.clamp(1, most)));
        self
    }

    /// Charges the limiter's own policy a single time. The key is the call's key for the first
    /// policy, or otherwise the first charge's key.
    fn push_own(&mut self, number: usize, cost: Cost) {
        let is_charged = self.charges.iter().any(|it| usize::from(it.limit) == number);
        // A cost of zero is always allowed.
        let costly = self.charges.iter().filter(|it| it.cost > Cost::ZERO);
        let key = costly.min_by_key(|it| it.limit != 0).map(|it| it.key.clone());
        if let Some(key) = key
            && !is_charged
        {
            self.push(number, &key, cost);
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
pub(super) struct Unused<St: Store>(Option<Permit<St>>);

impl<St: Store> Unused<St> {
    pub(super) const fn new(permit: Permit<St>) -> Self {
        Self(Some(permit))
    }

    /// The call happens.
    pub(super) fn used(mut self) -> Permit<St> {
        self.0.take().expect("a permit is taken once")
    }

    async fn turn(&mut self, has_queued: bool) -> Turn {
        match &mut self.0 {
            Some(permit) => permit.turn(has_queued).await,
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

/// A key may have been paused while a call was in the queue for this long.
const RECHECK: Duration = Duration::from_secs(1);

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
        Rejection::Undecided(error) => AcquireError::Store(error),
    }
}

debug_fields!([St: Store] Acquire<St>, patience);
