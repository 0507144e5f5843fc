//! The rate for a service that denies calls without naming a wait.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::{Cost, Key, Policy, PolicyError, Quota};

/// Additive increase, multiplicative decrease, for all processes.
///
/// The rate is what remains in a token bucket per key: a denial takes half of it, and it refills
/// evenly. At half of the rate, a call costs twice as much.
pub(super) struct Rate {
    /// The bucket's number.
    pub(super) number: usize,
    /// Keys below the full rate, as this process knows them.
    lowered: Mutex<HashMap<Key, Lowered>>,
}

#[derive(Clone, Copy)]
struct Lowered {
    /// In units of [`FULL`].
    rate: u64,
    /// What rounding has left to the next call.
    carry: u64,
}

const FULL: u64 = 1_000;

/// A sixteenth.
const LEAST: u64 = FULL / 16;

/// Further keys are called at the full rate.
const MAX_KEYS: usize = 10_000;

impl Rate {
    pub(super) fn new(number: usize) -> Self {
        Self { number, lowered: Mutex::default() }
    }

    /// The bucket, which is full again after `recovery`.
    pub(super) fn policy(first: &Policy, recovery: Duration) -> Result<Policy, PolicyError> {
        let quota = Quota::new(FULL, recovery);
        let policy = Policy::token_bucket(format!("{}-rate", first.name()), quota)?;
        Ok(policy.failing_like(first))
    }

    /// Remembers what remains in the bucket.
    pub(super) fn learn(&self, key: &Key, remaining: u64) {
        let mut lowered = self.lowered.lock();
        if remaining >= FULL {
            lowered.remove(key);
            return;
        }
        let rate = remaining.max(LEAST);
        if let Some(known) = lowered.get_mut(key) {
            known.rate = rate;
        } else if lowered.len() < MAX_KEYS {
            lowered.insert(key.clone(), Lowered { rate, carry: 0 });
        }
    }

    /// Returns what a call costs at the key's rate, at most a quota's `capacity`.
    pub(super) fn cost(&self, key: &Key, cost: Cost, capacity: u64) -> Cost {
        let mut lowered = self.lowered.lock();
        let Some(Lowered { rate, carry }) = lowered.get_mut(key) else { return cost };
        let units = u128::from(cost.get()) * u128::from(FULL) + u128::from(*carry);
        // The remainder is less than the rate.
        *carry = (units % u128::from(*rate)) as u64;
        let units = u64::try_from(units / u128::from(*rate)).unwrap_or(u64::MAX);
        Cost::new(units.min(capacity)).max(cost)
    }

    /// Returns what a denied call leaves in the bucket that it has seen.
    pub(super) const fn halved(remaining: u64) -> u64 {
        let half = remaining / 2;
        if half < LEAST { LEAST } else { half }
    }
}
