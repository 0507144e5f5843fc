//! A call, before it has a permit.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Cost, Key, Micros, Policy, Store};
use tollgate_engine::{Charges, Limits};

use super::error::AcquireError;
use super::state::State;

/// A call under several keys, or with its own deadline. Created by
/// [`Limiter::request`](super::Limiter::request).
#[must_use = "call `acquire` or `try_acquire`"]
pub struct Acquire<St: Store> {
    pub(super) state: Arc<State<St>>,
    /// Undecided.
    pub(super) charges: Charges,
    pub(super) patience: Micros,
    /// When `patience` ends, from the first wait on.
    pub(super) deadline: Option<Instant>,
    /// Why the call cannot be decided.
    pub(super) invalid: Option<AcquireError>,
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
    /// for [retries](super::Permit::retry) it includes the calls before them.
    pub fn within(mut self, wait: Duration) -> Self {
        self.patience = wait.into();
        self
    }

    /// The longest total wait: the caller's wait, or a policy's wait if that is shorter.
    pub(super) fn longest_wait(&self) -> Micros {
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
    pub(super) fn push_own(&mut self, number: usize, cost: Cost) {
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
}

debug_fields!([St: Store] Acquire<St>, patience);
