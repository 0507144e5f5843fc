//! Why a call is not allowed.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Micros, StoreError};
use tollgate_engine::Limits;

use crate::layer::Verdicts;

/// The error for a call that a [`Limiter`](super::Limiter) does not allow.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A policy denies the call, and the limiter does not wait or the cost exceeds the capacity.
    #[error("denied {0}")]
    Denied(Refusal),
    /// The call would have to wait for longer than it may, or has waited for so long.
    #[error("the wait would be too long: denied {0}")]
    TooLate(Refusal),
    /// Too many calls wait, or too many with the same key.
    #[error("the wait queue is full: denied {0}")]
    QueueFull(Refusal),
    /// The retry budget is used up. The first call's response says more.
    #[error("the retry budget is used up: denied {0}")]
    RetryBudget(Refusal),
    /// The limiter has no retry budget.
    #[doc(alias = "TG0609")]
    #[error("the limiter has no retry budget: add it with `.retries(10)` [TG0609]")]
    NoRetryBudget,
    /// The limiter [was closed](super::Limiter::close).
    #[error("the limiter is closed")]
    Closed,
    /// The store could not decide, and a policy fails closed.
    #[error(transparent)]
    Store(StoreError),
    /// The limiter has no policy with this name.
    #[doc(alias = "TG0609")]
    #[error("the limiter has no policy `{0}`: add it with `.policy(..)` [TG0609]")]
    UnknownPolicy(String),
    /// The [look-up](super::LimiterBuilder::policy_from) does not know a key, and refuses such keys.
    #[error("the look-up of quotas does not know the key")]
    UnknownClient,
    /// A key's quota could not be looked up, and the look-up refuses calls then.
    #[error("the key's quota could not be looked up")]
    LookUpFailed,
    /// The call has more charges than a request can have.
    #[doc(alias = "TG0127")]
    #[error(
        "the call has more than {} charges: acquire the others separately [TG0127]",
        Limits::MAX
    )]
    TooManyCharges,
}

tollgate_core::debug_as_display!(AcquireError);

impl AcquireError {
    /// Returns when the call may be allowed, or `None` if this is unknown or never.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(refusal)
            | Self::TooLate(refusal)
            | Self::QueueFull(refusal)
            | Self::RetryBudget(refusal) => refusal.retry_after(),
            Self::Store(error) => error.retry_after().map(Duration::from),
            Self::NoRetryBudget
            | Self::Closed
            | Self::UnknownPolicy(_)
            | Self::UnknownClient
            | Self::LookUpFailed
            | Self::TooManyCharges => None,
        }
    }
}

/// The error for a charge that is not corrected.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The charge is too old to be corrected, so it stands.
    #[error("the charge is too old to be corrected, so it stands")]
    Lapsed,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

tollgate_core::debug_as_display!(SettleError);

/// The decisions on a denied call.
#[derive(Clone, Debug)]
pub struct Refusal {
    verdicts: Verdicts,
    retry_after: Option<Micros>,
}

impl Refusal {
    pub(super) fn new(verdicts: Verdicts) -> Self {
        let denying =
            || verdicts.iter().filter(|it| it.is_exceeded() && !it.is_shadow() && !it.is_soft());
        // A policy that can never allow the call has no such time, so the call has none either.
        let never = denying().any(|verdict| verdict.decision().retry_after().is_none());
        let waits = denying().filter_map(|verdict| verdict.decision().retry_after());
        let retry_after = waits.max().filter(|_| !never);
        Self { verdicts, retry_after }
    }

    /// Returns when the call may be allowed, or `None` if it never can be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from)
    }

    /// Returns all policies' decisions.
    pub const fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }
}

/// Names the policies and the wait: "by `jobs`, retry after 3 seconds".
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denying = self.verdicts.iter().filter(|verdict| verdict.is_exceeded());
        for (number, verdict) in denying.enumerate() {
            let comma = if number == 0 { "by" } else { "," };
            write!(f, "{comma} `{}`", verdict.policy().name())?;
        }
        match self.retry_after {
            Some(wait) => write!(f, ", retry after {wait}"),
            None => f.write_str(", which no wait changes"),
        }
    }
}
