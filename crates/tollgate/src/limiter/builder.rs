//! The limiter's builder.

use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{Policy, Store};
use tollgate_engine::{Limits, Refunds};

use super::shared::Limiter;
use super::state::{Face, State};
use crate::drive::Observed;
use crate::layer::{LayerError, WaitQueue, check_limits};
use crate::limit::Reserve;
use crate::{Limit, Mode};

/// Collects the policies and options of a [`Limiter`].
pub struct LimiterBuilder<St> {
    store: St,
    limits: Vec<(Limit, bool)>,
    wait: Option<Duration>,
    queue: WaitQueue,
    observed: Observed,
}

impl<St: Store> Limiter<St> {
    /// Creates a builder for a limiter over `store`.
    pub fn builder(store: St) -> LimiterBuilder<St> {
        let (limits, wait) = (Vec::new(), None);
        let (queue, observed) = (WaitQueue::new(), Observed::default());
        LimiterBuilder { store, limits, wait, queue, observed }
    }
}

impl<St: Store> LimiterBuilder<St> {
    /// Adds a policy with a quota for each key. Under a concurrency limit each call costs 1.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.limit(policy, false)
    }

    /// Adds a policy with a single quota for all keys.
    #[must_use]
    pub fn global(self, policy: Policy) -> Self {
        self.limit(policy, true)
    }

    fn limit(mut self, policy: Policy, is_global: bool) -> Self {
        let is_rate = !policy.is_concurrency() && !policy.is_penalty();
        let limit = Limit::global(policy);
        let limit = if is_rate { limit.reserve(Reserve::by_handler()) } else { limit };
        self.limits.push((limit, is_global));
        self
    }

    /// Lets calls wait until the policies allow them, for up to this time. By default they do not
    /// wait. A leaky bucket in queue mode delays its calls in either case.
    #[must_use]
    pub fn wait(mut self, max: Duration) -> Self {
        self.wait = Some(max);
        self
    }

    /// Sets the queue of waiting calls, to change its bounds or to share it with layers and other
    /// limiters. Each waiting call counts 1 KiB.
    #[must_use]
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.queue = queue.clone();
        self
    }

    /// Sets the observer for all decisions.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn observer(mut self, observer: &crate::observe::Observer) -> Self {
        self.observed.observer = Some(observer.clone());
        self
    }

    /// Checks the policies, and builds the limiter.
    ///
    /// # Errors
    /// The same as for a layer's limits: see [`LayerError`].
    pub fn build(self) -> Result<Limiter<St>, LayerError> {
        let Self { store, limits, wait, queue, observed } = self;
        if limits.is_empty() {
            return Err(LayerError::NoLimit);
        }
        let (mut limits, are_global): (Vec<_>, Vec<_>) = limits.into_iter().unzip();
        if let Some(max) = wait {
            let waiting = |limit: Limit| match limit.policy.is_penalty() {
                true => limit,
                false => limit.mode(Mode::Wait(max)),
            };
            limits = limits.into_iter().map(waiting).collect();
        }
        check_limits(&mut limits, &store)?;
        let limits = Limits::new(limits.iter().map(|limit| limit.rule(&[])));
        let face = Face { queue, are_global: are_global.into(), closed: Semaphore::new(0) };
        Ok(Limiter::new(State::new(store, limits, face, Refunds::All, &observed)))
    }
}

debug_fields!([St] LimiterBuilder<St>, limits, wait);
