//! The limiter's builder.

use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{OnStoreError, Policy, PolicyError, Store, Strikes};
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
    waiting: Waiting,
    longest_pause: Option<Duration>,
    leaving_percent: u8,
    wait_queue: WaitQueue,
    observed: Observed,
}

/// Where calls wait.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    Nowhere,
    InThisProcess(Duration),
    InTheStore(Duration),
}

impl Waiting {
    fn apply(self, mut limit: Limit) -> Result<Limit, LayerError> {
        Ok(match self {
            Self::Nowhere => limit,
            Self::InThisProcess(_) if limit.policy.is_penalty() => limit,
            Self::InThisProcess(max) => limit.mode(Mode::Wait(max)),
            Self::InTheStore(_) if limit.policy.is_concurrency() => {
                return Err(LayerError::QueueBesidePermits(limit.policy.name().to_owned()));
            }
            Self::InTheStore(max) => {
                limit.policy = limit.policy.with_queue(max)?;
                limit
            }
        })
    }
}

impl<St: Store> Limiter<St> {
    /// Creates a builder for a limiter over `store`.
    pub fn builder(store: St) -> LimiterBuilder<St> {
        let (limits, waiting, longest_pause) = (Vec::new(), Waiting::Nowhere, None);
        let (wait_queue, observed) = (WaitQueue::new(), Observed::default());
        LimiterBuilder {
            store,
            limits,
            waiting,
            longest_pause,
            leaving_percent: 0,
            wait_queue,
            observed,
        }
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

    /// Lets calls wait in this process until the policies allow them, for up to this time. By default
    /// they do not wait. A leaky bucket in queue mode delays its calls in either case.
    ///
    /// A call that gives up loses nothing, and other processes compete for the units. See
    /// [`queue`](Self::queue) for an order over all processes.
    #[must_use]
    pub const fn wait(mut self, max: Duration) -> Self {
        self.waiting = Waiting::InThisProcess(max);
        self
    }

    /// Lets calls queue in the store, for up to this time: each call gets its instant at once, after
    /// all calls of all processes that came before it, and asks the store only once.
    ///
    /// If a call gives up, the calls behind it keep their instants; if it was the last, the next call
    /// gets its instant. See [`Policy::with_queue`]. All other limiters with the same policies must
    /// queue too, or take no unit before the calls that queue: [`leaving_percent`](Self::leaving_percent)
    /// does that.
    ///
    /// While the store fails, no call is allowed, unless the store has a local fallback or the policy
    /// has another [failure policy](Policy::with_on_store_error).
    ///
    /// A concurrency limit cannot be beside it, because its permits would be held in the queue: acquire
    /// them after this permit, from a limiter of their own.
    #[must_use]
    pub const fn queue(mut self, max: Duration) -> Self {
        self.waiting = Waiting::InTheStore(max);
        self
    }

    /// Lets calls of this limiter leave this percentage of each quota, up to 99, to other limiters
    /// with the same policies, which have a higher priority then.
    ///
    /// Combine it with [`wait`](Self::wait): a call that queues would take an instant that a later
    /// call with a higher priority could not get. While calls of other limiters queue, these calls
    /// take no unit.
    #[must_use]
    pub const fn leaving_percent(mut self, percent: u8) -> Self {
        self.leaving_percent = percent;
        self
    }

    /// Lets responses of the called service pause a key for all processes, for up to `longest`. See
    /// [`Permit::learn`](super::Permit::learn) and [`Limiter::pause`].
    ///
    /// This adds a penalty named after the first policy, such as `partner-pause`, under the key of a
    /// call's first charge. It needs [`queue`](Self::queue).
    ///
    /// A call that has queued for a second or longer asks the store again whether its key is paused by
    /// now. If so, it asks for another instant, behind the calls that came since the pause began. All its
    /// waits together are no longer than the queue.
    #[must_use]
    pub const fn pausable(mut self, longest: Duration) -> Self {
        self.longest_pause = Some(longest);
        self
    }

    /// Sets the queue of waiting calls, to change its bounds or to share it with layers and other
    /// limiters. Each waiting call counts 1 KiB.
    #[must_use]
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.wait_queue = queue.clone();
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
        let Self {
            store,
            mut limits,
            waiting,
            longest_pause,
            leaving_percent,
            wait_queue,
            observed,
        } = self;
        if limits.is_empty() {
            return Err(LayerError::NoLimit);
        }
        let pause = longest_pause.map(|longest| {
            let (first, is_global) = &limits[0];
            if !matches!(waiting, Waiting::InTheStore(_)) {
                return Err(LayerError::PauseWithoutQueue);
            }
            Ok((Limit::global(pause_policy(&first.policy, longest)?), *is_global))
        });
        let pause_number = longest_pause.map(|longest| (limits.len(), longest));
        limits.extend(pause.transpose()?);
        let (limits, are_global): (Vec<_>, Vec<_>) = limits.into_iter().unzip();
        let limits = limits.into_iter().map(|limit| waiting.apply(limit));
        let mut limits = limits.collect::<Result<Vec<_>, _>>()?;
        let is_rate = |it: &&mut Limit| !it.policy.is_penalty() && !it.policy.is_concurrency();
        for limit in limits.iter_mut().filter(is_rate).filter(|_| leaving_percent > 0) {
            *limit = limit.clone().leaving_percent(leaving_percent);
            if limit.policy.max_queue_time().is_none() {
                // Calls with a higher priority may queue for the same units.
                limit.policy = limit.policy.clone().with_queue(Duration::ZERO)?;
            }
        }
        if matches!(waiting, Waiting::InTheStore(_)) && !store.has_local_fallback() {
            limits.iter_mut().for_each(|it| it.default_on_store_error(OnStoreError::Closed));
        }
        check_limits(&mut limits, &store)?;
        let limits = Limits::new(limits.iter().map(|limit| limit.rule(&[])));
        let (are_global, closed) = (are_global.into(), Semaphore::new(0));
        let face = Face { queue: wait_queue, are_global, pause: pause_number, closed };
        Ok(Limiter::new(State::new(store, limits, face, Refunds::All, &observed)))
    }
}

/// A pause whose length the service states is a block. If it states none, the pause starts with a
/// second and doubles with each denial, until there was none for a minute.
fn pause_policy(first: &Policy, longest: Duration) -> Result<Policy, PolicyError> {
    let second = Duration::from_secs(1).min(longest);
    let strikes = Strikes::of_failures(1, Duration::from_secs(1)).block(second).growing(2, longest);
    let strikes = strikes.forgotten_after(Duration::from_secs(60));
    let policy = Policy::penalty(format!("{}-pause", first.name()), strikes)?;
    policy.failing_like(first).with_queue(longest)
}

debug_fields!([St] LimiterBuilder<St>, limits, waiting);
