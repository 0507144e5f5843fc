//! What all clones of a limiter share.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tollgate_core::{Cost, Key, Micros, Policy};
use tollgate_engine::{AppliedLimit, Limits, SubjectKind};

use super::rate::Rate;
use crate::drive::{Decided, Driver};
use crate::key::{KeyError, KeySource, Subject};
use crate::layer::WaitQueue;
use crate::tier::lookup::{Look, OwnQuotas, Terms};
use crate::{Limit, RequestHead};

pub(super) type State<St> = Driver<St, Face>;

/// What the limiter adds to its driver.
pub(crate) struct Face {
    pub(super) queue: WaitQueue,
    pub(super) limits: Box<[Limit]>,
    /// The look-ups of keys' quotas, for each policy.
    pub(super) quotas: Box<[Option<OwnQuotas>]>,
    /// Which policies have a single quota for all keys.
    pub(super) are_global: Box<[bool]>,
    /// The number of the penalty that pauses a key, and its longest pause.
    pub(super) pause: Option<(usize, Duration)>,
    /// How many policies come from the caller. The limiter's own policies follow.
    pub(super) policies: usize,
    /// The number of the retry budget.
    pub(super) retries: Option<usize>,
    /// The rate, if it follows the called service.
    pub(super) rate: Option<Rate>,
    /// Has no permits. It is closed together with the limiter, which wakes its waiters.
    pub(super) closed: Semaphore,
}

impl<St> State<St> {
    /// The decision on the bucket that holds the rate.
    pub(super) fn rate<'a>(&self, decided: &'a Decided) -> Option<&'a AppliedLimit> {
        let number = self.face.rate.as_ref()?.number;
        decided.charges.iter().find(|it| usize::from(it.limit) == number)
    }

    /// The policy of the retry budget.
    pub(super) fn retries(&self) -> Option<&Policy> {
        self.limits.iter().nth(self.face.retries?).map(|limit| &limit.policy)
    }
}

impl Face {
    /// Whether any key may have a quota of its own.
    pub(super) fn looks_up(&self) -> bool {
        self.quotas.iter().any(Option::is_some)
    }

    /// Returns the key's terms if the policy has a look-up, and the key no override. Waits for the
    /// result if necessary, for up to `patience`.
    pub(super) async fn terms(
        &self,
        limits: &Limits,
        applied: &AppliedLimit,
        patience: Micros,
    ) -> Option<Terms> {
        let quotas = self.quotas[usize::from(applied.limit)].as_ref()?;
        if limits.is_overridden(applied) {
            // A blocked key is told when its own quota allows it again.
            return quotas.last_known(&applied.key, applied.tier);
        }
        let answer = match quotas.look_by_key(&applied.key, applied.kind) {
            Look::Cached(answer) => answer,
            Look::InProgress(pending) => {
                let in_time = timeout(patience.into(), pending.wait()).await;
                in_time.unwrap_or_else(|_| quotas.late(&applied.key))
            }
        };
        Some(quotas.terms(&answer, applied.tier))
    }

    /// Whether it is one of the caller's rate limits.
    pub(super) fn is_rate(&self, limits: &Limits, applied: &AppliedLimit) -> bool {
        let policy = limits.policy(applied);
        let is_callers = usize::from(applied.limit) < self.policies;
        is_callers && !policy.is_penalty() && !policy.is_concurrency()
    }

    /// Applies the limit with this number.
    pub(super) fn applied(
        &self,
        limits: &Limits,
        number: usize,
        key: &Key,
        cost: Cost,
    ) -> AppliedLimit {
        let policy = limits.iter().nth(number).map(|limit| &limit.policy);
        // Under a concurrency limit or a penalty, each call costs 1. A call without units is not blocked.
        let is_one =
            policy.is_some_and(|it| it.is_concurrency() || it.is_penalty() && cost > Cost::ZERO);
        let cost = if is_one { Cost::ONE } else { cost };
        let (kind, key) = match self.are_global[number] {
            true => (SubjectKind::Global, Key::GLOBAL),
            false => (SubjectKind::Other, key.clone()),
        };
        // A limiter has at most 64 limits.
        AppliedLimit::new(number as u8, kind, key, cost)
    }
}

/// The keys come from the caller, so operators name them by their bytes.
pub(super) struct CallersKey;

impl KeySource for CallersKey {
    fn subject(&self, _: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(None)
    }

    fn can_be_missing(&self) -> bool {
        false
    }
}

#[cfg(feature = "metrics")]
impl crate::layer::Limited for Face {
    fn limits(&self) -> Vec<&Limit> {
        self.limits.iter().collect()
    }

    fn tier_of(&self, _: &crate::key::SubjectName) -> Option<crate::tier::Tier> {
        None
    }
}
