//! The rate for a service that denies calls without naming a wait.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::{Key, Policy, PolicyError, Quota};

/// Additive increase, multiplicative decrease, for all processes.
///
/// The rate is what remains in a token bucket per key: a denial takes half of it, and it refills
/// evenly. At half of the rate, every second turn passes unused.
pub(super) struct Rate {
    /// The bucket's number.
    pub(super) number: usize,
    /// For keys below the full rate, what remains for the next turn, in units of [`FULL`].
    lowered: Mutex<HashMap<Key, u64>>,
}

const FULL: u64 = 1_000;

/// A sixteenth.
const LEAST: u64 = FULL / 16;

/// A further key replaces all stored keys.
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

    /// Returns whether a turn is used, if this remains in the key's bucket.
    pub(super) fn uses_turn(&self, key: &Key, remaining: u64) -> bool {
        let mut lowered = self.lowered.lock();
        if remaining >= FULL {
            lowered.remove(key);
            return true;
        }
        if lowered.len() >= MAX_KEYS && !lowered.contains_key(key) {
            // A key loses less than a turn.
            lowered.clear();
        }
        let credit = lowered.entry(key.clone()).or_insert(0);
        *credit += remaining.max(LEAST);
        let is_used = *credit >= FULL;
        if is_used {
            *credit -= FULL;
        }
        is_used
    }

    /// Returns the units that a denied call leaves in the bucket, from the units that it has seen.
    pub(super) const fn halved(remaining: u64) -> u64 {
        let half = remaining / 2;
        if half < LEAST { LEAST } else { half }
    }
}
