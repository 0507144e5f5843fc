//! A key and policy with units that may be leased.

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tollgate_core::{Charge, Key, Lease, Policy, StoreError};

use super::blocks::{Blocks, Returned};
use crate::calls::ticket::Leased;
use crate::clock::{Clock, Moment};
use crate::script::encode::Ask;
use crate::script::names::Name;
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct LeasedKey {
    pub(super) policy: Policy,
    pub(super) key: Key,
    /// The Redis name of the state.
    pub(super) state: Name,
    pub(super) blocks: Mutex<Blocks>,
    /// Wakes the refill task.
    pub(super) bell: Notify,
    /// Wakes callers that wait for the answer to the refill task's call.
    answered: Notify,
}

impl LeasedKey {
    pub(super) fn new(charge: &Charge<'_>, lease: Lease, state: Name, now: Moment) -> Self {
        Self {
            policy: charge.policy.clone(),
            key: charge.key.clone(),
            state,
            blocks: Mutex::new(Blocks::new(charge.policy, lease, now)),
            bell: Notify::new(),
            answered: Notify::new(),
        }
    }

    /// Closes all blocks. Returns the report for Redis, and the answer to wait for if the refill
    /// task's call is in flight.
    pub(super) fn close(&self, now: Moment) -> (Returned, Option<Notified<'_>>) {
        let mut blocks = self.blocks.lock();
        // Created under the lock, to avoid missing the answer.
        let answered = blocks.awaits_answer.then(|| self.answered.notified());
        (blocks.close(now), answered)
    }

    /// Handles the answer to the refill task's call.
    pub(super) fn learn(
        &self,
        spent: Returned,
        ask: Ask,
        answer: Result<Leased, StoreError>,
        clock: &Clock,
    ) {
        self.blocks.lock().learn(spent, ask, answer, clock);
        self.answered.notify_waiters();
    }

    /// Records that the refill task was dropped, perhaps with a call in flight.
    pub(super) fn lose_refill(&self) {
        {
            let mut blocks = self.blocks.lock();
            (blocks.has_refill, blocks.awaits_answer) = (false, false);
        }
        self.answered.notify_waiters();
    }

    /// Whether a charge is to this key under the same quota. Units leased under one version of a
    /// policy are not spent under another version.
    pub(super) fn is_for(&self, charge: &Charge<'_>) -> bool {
        let (mine, policy) = (&self.policy, charge.policy);
        self.key == *charge.key
            && (mine.is_same(policy)
                || (mine.shares_state_with(policy) && mine.lease() == policy.lease()))
    }
}
