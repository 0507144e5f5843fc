//! A key and policy with units that may be leased.

use tokio::sync::Notify;
use tollgate_core::{Charge, Key, Lease, Policy};

use super::blocks::Blocks;
use crate::clock::Moment;
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
}

impl LeasedKey {
    pub(super) fn new(charge: &Charge<'_>, lease: Lease, state: Name, now: Moment) -> Self {
        Self {
            policy: charge.policy.clone(),
            key: charge.key.clone(),
            state,
            blocks: Mutex::new(Blocks::new(charge.policy, lease, now)),
            bell: Notify::new(),
        }
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
