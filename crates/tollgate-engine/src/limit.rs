//! Limits: a policy in each tier, what happens beyond its quota, and what it corrects.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Micros, OnStoreError, Policy, StoreError};

use crate::applied::{AppliedLimit, TierIndex};
use crate::overridden::Overridden;

/// What a limit does with a request beyond its quota.
///
/// The enum is exhaustive, because everything that shows or applies a limit must handle each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The request is rejected immediately.
    #[default]
    Reject,
    /// The request waits until the limit allows it, for up to this time.
    Wait(Duration),
    /// The request is allowed without a charge, and marked.
    Annotate,
    /// The request is allowed, and nobody notices. For a limit that is only observed.
    Shadow,
}

impl Mode {
    /// Returns whether the limit can reject a request.
    #[inline]
    pub const fn enforces(self) -> bool {
        matches!(self, Self::Reject | Self::Wait(_))
    }

    /// Returns the mode of a penalty beside the limit. A blocked client is rejected even if its
    /// requests may wait or exceed the quota.
    #[must_use]
    pub const fn of_penalty(self) -> Self {
        match self {
            Self::Reject | Self::Wait(_) | Self::Annotate => Self::Reject,
            Self::Shadow => Self::Shadow,
        }
    }

    /// Returns how long a request may wait for the limit. `None` if it may not wait.
    pub const fn max_wait(self) -> Option<Duration> {
        match self {
            Self::Wait(max) => Some(max),
            Self::Reject | Self::Annotate | Self::Shadow => None,
        }
    }
}

/// Which charges of a limit are corrected when a request's outcome is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrects {
    /// Whether only some outcomes count.
    pub counts: bool,
    /// Whether some outcomes forgive what the key has used.
    pub forgives: bool,
    /// Whether the cost is an estimate, and after which time the estimate becomes final.
    pub reserve: Option<Micros>,
}

impl Corrects {
    /// Returns whether any charge is corrected.
    pub const fn any(self) -> bool {
        self.counts || self.forgives || self.reserve.is_some()
    }
}

/// A policy with its quotas in tiers, and what happens to requests beyond it.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The policy outside of tiers.
    pub policy: Policy,
    /// The policy in each tier, by the tier's number.
    pub in_tiers: Box<[Policy]>,
    /// What happens to a request beyond the quota.
    pub mode: Mode,
    /// Which charges are corrected after the request.
    pub corrects: Corrects,
    /// The percentage of the quota that a request must leave, for requests with a higher priority
    /// under the same policy.
    pub headroom_percent: u8,
}

impl Limit {
    /// Creates a limit that rejects, without tiers.
    pub fn new(policy: Policy) -> Self {
        let (mode, corrects) = (Mode::Reject, Corrects::default());
        Self { policy, in_tiers: Box::default(), mode, corrects, headroom_percent: 0 }
    }

    /// Sets what happens to a request beyond the quota.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Returns the units that a request must leave under a policy.
    #[inline(always)]
    fn headroom(&self, policy: &Policy) -> Cost {
        if self.headroom_percent == 0 {
            return Cost::ZERO;
        }
        let capacity = policy.capacity();
        Cost::new((capacity * u64::from(self.headroom_percent)).div_ceil(100).min(capacity - 1))
    }

    /// Returns the policy in a tier. A tier without its own quota has the policy outside of tiers.
    #[inline]
    pub fn policy_in(&self, tier: TierIndex) -> &Policy {
        // Without tiers the list is empty, so every number means the policy outside of tiers.
        self.in_tiers.get(usize::from(tier.0)).unwrap_or(&self.policy)
    }

    /// Returns what happens to a request if the store fails with this error.
    pub fn on_error(&self, error: &StoreError) -> OnStoreError {
        self.policy.on_error(error).unwrap_or_default()
    }

    fn fails_closed(&self, error: &StoreError) -> bool {
        self.mode.enforces() && self.on_error(error) != OnStoreError::Open
    }
}

/// The limits that a request can meet. The store decides all that apply to a request together.
#[derive(Clone, Debug)]
pub struct Limits {
    list: Box<[Limit]>,
    may_wait: bool,
    delaying: Option<usize>,
    pub(crate) overridden: Option<Arc<Overridden>>,
}

impl Limits {
    /// The most limits that a request can meet.
    pub const MAX: usize = 64;

    /// Creates a list of at most [`MAX`](Self::MAX) limits.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let list: Box<[Limit]> = limits.into_iter().collect();
        debug_assert!(list.len() <= Self::MAX, "too many limits");
        let may_wait = list.iter().any(|limit| limit.mode.max_wait().is_some());
        let delays = |limit: &Limit| limit.mode.enforces() && limit.policy.queues();
        let delaying = list.iter().position(delays);
        Self { may_wait, delaying, list, overridden: None }
    }

    /// Returns the limit that applies.
    #[inline]
    pub fn of(&self, applied: &AppliedLimit) -> &Limit {
        &self.list[usize::from(applied.limit)]
    }

    /// Returns the limits in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Limit> + Clone {
        self.list.iter()
    }

    /// Returns the number of limits.
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether requests may wait for units in a queue.
    pub const fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns the number of the first limit that delays requests which it allows.
    #[inline]
    pub const fn delaying(&self) -> Option<usize> {
        self.delaying
    }

    /// Returns the policy that applies to the client: its own, or otherwise its tier's.
    #[inline]
    pub fn policy<'a>(&'a self, applied: &'a AppliedLimit) -> &'a Policy {
        match &applied.own {
            None => self.of(applied).policy_in(applied.tier),
            Some(own) => &own.policy,
        }
    }

    /// Returns the charge to the store.
    #[inline(always)]
    pub fn charge<'a>(&'a self, applied: &'a AppliedLimit) -> Charge<'a> {
        let limit = self.of(applied);
        let policy = self.policy(applied);
        let charge = Charge::new(policy, &applied.key, applied.cost);
        Charge {
            enforce: limit.mode.enforces(),
            queue: charge.queue.map(|max_time| max_time.min(applied.patience)),
            headroom: limit.headroom(policy),
            ..charge
        }
    }

    /// Returns the charges to the store.
    pub fn charges<'a>(&'a self, applied: &'a [AppliedLimit]) -> SmallVec<[Charge<'a>; 4]> {
        applied.iter().map(|applied| self.charge(applied)).collect()
    }

    /// Returns the applied limits that reject a request that the store could not decide. These
    /// include limits with a local fallback, because their local store could not decide either.
    /// But if another limit fails closed, the local store was not called, so only closed limits
    /// reject.
    pub fn failing_closed<'a>(
        &'a self,
        applied: &'a [AppliedLimit],
        error: &'a StoreError,
    ) -> impl Iterator<Item = &'a AppliedLimit> {
        let is_closed =
            move |applied: &AppliedLimit| self.of(applied).on_error(error) == OnStoreError::Closed;
        let rejecting = applied.iter().filter(move |it| self.of(it).fails_closed(error));
        let any_is_closed = rejecting.clone().any(is_closed);
        rejecting.filter(move |applied| !any_is_closed || is_closed(applied))
    }

    /// Returns whether a charge costs more than its policy's capacity. The store denies such a
    /// request however many units remain, so waiting does not help.
    pub(crate) fn never_pass(&self, applied: &[AppliedLimit]) -> bool {
        let exceeds = |applied: &AppliedLimit| {
            let charge = self.charge(applied);
            charge.enforce && charge.required().get() > charge.policy.capacity()
        };
        applied.iter().any(exceeds)
    }
}
