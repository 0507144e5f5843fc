//! What all clones of a limiter share.

use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{Cost, Key, Policy};
use tollgate_engine::{AppliedLimit, Limits, SubjectKind};

use crate::drive::Driver;
use crate::layer::WaitQueue;

pub(super) type State<St> = Driver<St, Face>;

/// What the limiter adds to its driver.
pub(crate) struct Face {
    pub(super) queue: WaitQueue,
    /// Which policies have a single quota for all keys.
    pub(super) are_global: Box<[bool]>,
    /// The number of the penalty that pauses a key, and its longest pause.
    pub(super) pause: Option<(usize, Duration)>,
    /// How many policies come from the caller. The limiter's own policies follow.
    pub(super) policies: usize,
    /// The number of the retry budget.
    pub(super) retries: Option<usize>,
    /// Has no permits. It is closed together with the limiter, which wakes its waiters.
    pub(super) closed: Semaphore,
}

impl<St> State<St> {
    /// The policy of the retry budget.
    pub(super) fn retries(&self) -> Option<&Policy> {
        self.limits.iter().nth(self.face.retries?).map(|limit| &limit.policy)
    }
}

impl Face {
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
