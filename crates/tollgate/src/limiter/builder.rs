//! The limiter's builder.

use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{OnStoreError, Policy, PolicyError, Quota, Store, Strikes};
use tollgate_engine::{Limits, Refunds};

use super::rate::Rate;
use super::shared::Limiter;
use super::state::{CallersKey, Face, State};
use crate::drive::Observed;
use crate::layer::{LayerError, WaitQueue, check_limits};
use crate::limit::Reserve;
use crate::tier::QuotaLookup;
use crate::{Limit, Mode};

/// Collects the policies and options of a [`Limiter`].
#[must_use]
pub struct LimiterBuilder<St> {
    store: St,
    limits: Vec<Limit>,
    waiting: Waiting,
    longest_pause: Option<Duration>,
    recovery: Option<Duration>,
    retry_percent: u8,
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
            _ if limit.policy.is_penalty() => limit,
            Self::Nowhere => limit,
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

    /// Calls that queue in the store leave at the pause's end. If other calls did so, they would be
    /// charged when they start to wait, which is too early.
    fn pause(self, own: impl Fn(Policy) -> Limit, policy: Policy) -> Result<Limit, PolicyError> {
        let queue = |max| Ok(own(policy.with_queue(max)?));
        match self {
            Self::Nowhere => queue(Duration::ZERO),
            Self::InThisProcess(max) => Ok(queue(Duration::ZERO)?.mode(Mode::Wait(max))),
            Self::InTheStore(max) => queue(max),
        }
    }
}

impl<St: Store> Limiter<St> {
    /// Creates a builder for a limiter over `store`.
    pub fn builder(store: St) -> LimiterBuilder<St> {
        let (wait_queue, observed) = (WaitQueue::new(), Observed::default());
        LimiterBuilder {
            store,
            limits: Vec::new(),
            waiting: Waiting::Nowhere,
            longest_pause: None,
            recovery: None,
            retry_percent: 0,
            leaving_percent: 0,
            wait_queue,
            observed,
        }
    }
}

impl<St: Store> LimiterBuilder<St> {
    /// Adds a policy with a quota for each key. Under a concurrency limit each call costs 1.
    pub fn policy(self, policy: Policy) -> Self {
        self.limit(Limit::new(policy, CallersKey))
    }

    /// Adds a policy, and looks up each key's quota, for example in a database. The key's text is the
    /// [client's name](crate::tier::Client::name). The policy's own quota applies to keys that the
    /// look-up does not know, and to calls that cannot wait for a key's first look-up. A call takes
    /// its place when the look-up has ended. See [`QuotaLookup`].
    pub fn policy_from(self, policy: Policy, lookup: &QuotaLookup) -> Self {
        self.limit(Limit::new(policy, CallersKey).quota_from(lookup))
    }

    /// Adds a policy with a single quota for all keys.
    pub fn global(self, policy: Policy) -> Self {
        self.limit(Limit::global(policy))
    }

    fn limit(mut self, limit: Limit) -> Self {
        let limit = if is_rate(&limit) { limit.reserve(Reserve::by_handler()) } else { limit };
        self.limits.push(limit);
        self
    }

    /// Lets calls wait in this process until the policies allow them, for up to this time. By default
    /// they do not wait. A leaky bucket in queue mode delays its calls in either case.
    ///
    /// A call that gives up loses nothing, and other processes compete for the units. See
    /// [`queue`](Self::queue) for an order over all processes.
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
    pub const fn leaving_percent(mut self, percent: u8) -> Self {
        self.leaving_percent = percent;
        self
    }

    /// Lets responses of the called service pause a key for all processes, for up to `longest`. See
    /// [`Permit::learn`](super::Permit::learn) and [`Limiter::pause`].
    ///
    /// This adds a penalty named after the first policy, such as `partner-pause`, under the key of a
    /// call's first charge.
    ///
    /// A call that has queued for a second or longer asks the store again whether its key is paused by
    /// now. If so, it asks for another instant, behind the calls that came since the pause began. All its
    /// waits together are no longer than the queue.
    pub const fn pausable(mut self, longest: Duration) -> Self {
        self.longest_pause = Some(longest);
        self
    }

    /// Lowers the rate of all processes if the called service denies a call without naming a wait:
    /// each denial halves it, down to a sixteenth, and then it rises evenly. A rise from zero to
    /// the full quota would take `recovery`.
    ///
    /// A service that names its waits needs no such guess, so this is off by default. It adds a token
    /// bucket named after the first policy, such as `partner-rate`, under the first charge's key.
    /// At half the rate, every second turn passes unused: it remains charged, and the call queues
    /// again, behind all other calls.
    ///
    /// A denial has no effect if its call left before the rate was last halved.
    pub const fn adaptive(mut self, recovery: Duration) -> Self {
        self.recovery = Some(recovery);
        self
    }

    /// Lets calls be [repeated](super::Permit::retry) that the called service has denied, until the
    /// retries of all processes have cost this percentage of the first policy's quota.
    ///
    /// This adds a token bucket named after the first policy, such as `partner-retries`, whose
    /// capacity is at least 1. For example, with 10 % of 100 requests per minute, 10 calls can be
    /// repeated immediately, and another every 6 seconds. A retry does not wait for this budget. If
    /// the store cannot decide and has no local fallback, calls are not repeated.
    ///
    /// Use it with [`pausable`](Self::pausable). Otherwise a retry meets the same denial.
    pub const fn retries(mut self, percent: u8) -> Self {
        self.retry_percent = percent;
        self
    }

    /// Sets the queue of waiting calls, to change its bounds or to share it with layers and other
    /// limiters. Each waiting call counts 1 KiB.
    pub fn wait_queue(mut self, queue: &WaitQueue) -> Self {
        self.wait_queue = queue.clone();
        self
    }

    /// Sets the observer for all decisions.
    #[cfg(feature = "metrics")]
    pub fn observer(mut self, observer: &crate::observe::Observer) -> Self {
        self.observed.observer = Some(observer.clone());
        self
    }

    /// Checks the policies, and builds the limiter.
    ///
    /// # Errors
    /// The same as for a layer's limits: see [`LayerError`].
    pub fn build(self) -> Result<Limiter<St>, LayerError> {
        let mut limits = self.limits;
        let Some(first) = limits.first() else { return Err(LayerError::NoLimit) };
        let is_global = first.is_global();
        let policies = limits.len();
        for limit in &mut limits {
            let percent = if is_rate(limit) { self.leaving_percent } else { 0 };
            *limit = self.waiting.apply(limit.clone())?.leaving_percent(percent);
            if percent > 0 && limit.policy.max_queue_time().is_none() {
                // Calls with a higher priority may queue for the same units.
                limit.policy = limit.policy.clone().with_queue(Duration::ZERO)?;
            }
            if matches!(self.waiting, Waiting::InTheStore(_)) && !self.store.has_local_fallback() {
                limit.default_on_store_error(OnStoreError::Closed);
            }
        }
        let first = limits[0].policy.clone();
        // Under the key of the first policy.
        let own = |policy| match is_global {
            true => Limit::global(policy),
            false => Limit::new(policy, CallersKey),
        };
        let mut add = |limit| {
            limits.push(limit);
            limits.len() - 1
        };
        let pause = match self.longest_pause {
            Some(longest) => {
                let policy = pause_policy(&first, longest)?;
                Some((add(self.waiting.pause(own, policy)?), longest))
            }
            None => None,
        };
        let retries = match self.retry_percent {
            0 => None,
            percent => {
                let policy = retry_policy(&first, percent, &self.store)?;
                Some(add(own(policy).reserve(Reserve::by_handler())))
            }
        };
        let rate = match self.recovery {
            Some(recovery) => Some(Rate::new(add(own(Rate::policy(&first, recovery)?)))),
            None => None,
        };
        check_limits(&mut limits, &self.store)?;
        let rules = Limits::new(limits.iter().map(|limit| limit.rule(&[])));
        let rules = rules.overridden_by(self.store.overrides(), |_, _, _| Box::new(()));
        let face = Face {
            queue: self.wait_queue,
            quotas: limits.iter().map(|it| it.own_quotas(&[], |_| Box::new(()))).collect(),
            are_global: limits.iter().map(Limit::is_global).collect(),
            limits: limits.into(),
            policies,
            pause,
            retries,
            rate,
            closed: Semaphore::new(0),
        };
        Ok(Limiter::new(State::new(self.store, rules, face, Refunds::All, &self.observed)))
    }
}

fn is_rate(limit: &Limit) -> bool {
    !limit.policy.is_penalty() && !limit.policy.is_concurrency()
}

/// A pause whose length the service states is a block. If it states none, the pause starts with a
/// second and doubles with each denial, until there was none for a minute.
fn pause_policy(first: &Policy, longest: Duration) -> Result<Policy, PolicyError> {
    let second = Duration::from_secs(1).min(longest);
    let strikes = Strikes::of_failures(1, Duration::from_secs(1)).block(second).growing(2, longest);
    let strikes = strikes.forgotten_after(Duration::from_secs(60));
    let policy = Policy::penalty(format!("{}-pause", first.name()), strikes)?;
    Ok(policy.failing_like(first))
}

fn retry_policy(first: &Policy, percent: u8, store: &impl Store) -> Result<Policy, PolicyError> {
    let quota = first.quota();
    let units = (u128::from(quota.limit()) * u128::from(percent) / 100).max(1);
    let quota = Quota::new(u64::try_from(units).unwrap_or(u64::MAX), quota.window());
    let policy = Policy::token_bucket(format!("{}-retries", first.name()), quota)?;
    let default =
        if store.has_local_fallback() { OnStoreError::Local } else { OnStoreError::Closed };
    Ok(policy.with_on_store_error(default))
}

debug_fields!([St] LimiterBuilder<St>, limits, waiting);
