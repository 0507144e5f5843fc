//! The most requests that limits let through within any window.
//!
//! A search sends requests to the engine and finds a schedule that gets many through. A
//! [bound] follows from the algorithms. If both are equal, no schedule gets more through.
//!
//! | file | holds |
//! |---|---|
//! | `search.rs` | the search for a schedule |
//! | `bound.rs` | the upper bounds |
//! | `bursts.rs` | a schedule in words |

mod bound;
mod bursts;
mod search;

use std::sync::Arc;

use tollgate_core::{Algorithm, Cost, Key, Micros, Policy, StoreError};
use tollgate_engine::{AppliedLimit, Charges, Limit, Limits};

pub use self::bursts::Burst;
use crate::Fleet;

/// Requests that meet the same limits with the same costs.
#[derive(Clone, Debug)]
pub struct Kind {
    /// A description, such as `POST /login`.
    pub name: String,
    /// The limits.
    pub limits: Arc<Limits>,
    /// The charges of each request.
    pub charges: Charges,
}

impl Kind {
    /// Creates requests that only meet this policy.
    #[must_use]
    pub fn of_policy(policy: &Policy) -> Self {
        let limits = Arc::new(Limits::new([Limit::new(policy.clone())]));
        let charges = Charges::of_each(&limits, &Key::GLOBAL, Cost::ONE);
        Self { name: "request".to_owned(), limits, charges }
    }

    /// Returns the charges that bound how many requests pass within a window.
    fn counted(&self) -> impl Iterator<Item = &AppliedLimit> {
        self.charges.iter().filter(|applied| {
            let is_rate = self.limits.policy(applied).algorithm().is_some();
            is_rate && applied.cost > Cost::ZERO && self.limits.of(applied).mode.enforces()
        })
    }

    /// Returns the policies that bound how many requests pass within a window.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.counted().map(|applied| self.limits.policy(applied))
    }
}

/// What may happen while requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threat {
    /// The processes that decide, and their store.
    pub fleet: Fleet,
    /// For how long the store may be lost, a single time.
    pub store_lost: Option<Micros>,
    /// Whether the store may fail over, a single time, to a copy that lacks all charges.
    pub failover: bool,
}

/// The most requests that pass within any window.
#[derive(Clone, Debug)]
pub struct Worst {
    /// The window.
    pub window: Micros,
    /// Whether two requests that are a window apart count together. Buckets have no windows: their
    /// limit is refilled in a window, and both end points count.
    pub is_closed: bool,
    /// The most that the search found.
    pub found: u64,
    /// The [bound].
    pub bound: Option<u64>,
    /// The schedule that the search found.
    pub schedule: Vec<Burst>,
}

impl Worst {
    /// Whether the number that was found is the largest possible.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.bound == Some(self.found)
    }
}

/// Returns a number of requests that no schedule gets through within any window, of all kinds
/// together. `None` if there is no bound.
#[must_use]
pub fn bound(kinds: &[Kind], window: Micros, threat: &Threat) -> Option<u64> {
    bound::bound(kinds, span(kinds, window), threat)
}

/// Finds the most requests that pass within any window, of all kinds together.
///
/// # Errors
/// A request charges the same policy and key under two quotas.
pub fn worst(kinds: &[Kind], window: Micros, threat: &Threat) -> Result<Worst, StoreError> {
    search(kinds, window, threat, search::MOST)
}

/// Finds a schedule that gets more requests through, unless the [bound] excludes it.
///
/// # Errors
/// Same as [`worst`].
pub fn more_than(
    at_most: u64,
    kinds: &[Kind],
    window: Micros,
    threat: &Threat,
) -> Result<Option<Worst>, StoreError> {
    if bound(kinds, window, threat).is_some_and(|bound| bound <= at_most) {
        return Ok(None);
    }
    search(kinds, window, threat, at_most.saturating_add(1)).map(Some)
}

/// Searches until so many requests pass, or as many as can pass.
fn search(
    kinds: &[Kind],
    window: Micros,
    threat: &Threat,
    enough: u64,
) -> Result<Worst, StoreError> {
    let span = span(kinds, window);
    let bound = bound::bound(kinds, span, threat);
    let (found, schedule) = match bound {
        Some(most) if most <= search::MOST => {
            search::search(kinds, span, threat, most.min(enough))?
        }
        _ => (0, Vec::new()),
    };
    Ok(Worst { window, is_closed: span == window, found, bound, schedule })
}

/// Returns the longest time between two requests in the same window.
fn span(kinds: &[Kind], window: Micros) -> Micros {
    let mut algorithms = kinds.iter().flat_map(Kind::policies).map(Policy::algorithm);
    let is_closed = algorithms.all(|it| it.is_some_and(Algorithm::is_bucket));
    if is_closed { window } else { Micros::new(window.get().saturating_sub(1)) }
}

#[cfg(test)]
mod tests;
