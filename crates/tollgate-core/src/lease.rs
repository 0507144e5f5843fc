//! Leases: blocks of units that replicas may spend without calling the store, and how a key
//! accounts for them.
//!
//! A key consists of its algorithm's state and its open blocks. The construction is the same for
//! all algorithms and uses only the methods of [`Rule`](crate::algorithm::Rule):
//!
//! * An **open** block counts as if all its units were charged now: a request for `c` units is
//!   assessed as a request for `c` plus all open blocks.
//! * A **lapsed** block is charged at its last instant.
//! * A **settled** block is removed, and the units spent from it are charged at the instant of
//!   settling.
//!
//! So each unit counts at the latest instant at which it may have been spent. `lua/lease.lua` counts
//! so, and `Holds` in `tollgate-store-tests`, with which it is compared.
//!
//! # Why no limit is ever exceeded
//!
//! Let `t` be an instant at which a held unit is spent, and `g ≤ t` the last instant at which the
//! store granted any units. Take any span that finishes at `t`, and the units spent in it. Charges
//! were recorded at their own instants. Units from blocks that were settled or had lapsed by `g`
//! were charged later than they were spent, but not later than `g`. All other blocks were open at
//! `g` and counted in full. So the units spent in the span are at most the units counted at `g`,
//! and with these the limit held at `g`.
//!
//! * A log and a counter count spans that reach back a window from `t`. By `t`, some of the units
//!   counted at `g` may be forgotten, but never more than a decision at `t` forgets.
//! * A bucket's level is the maximum, over all spans that finish at `t`, of the charges in the span
//!   minus the drain. A charge recorded later also drains later.
//! * A counter must not move units into the next window, so a block expires with its window
//!   ([`Rule::last_instant`](crate::algorithm::Rule::last_instant)).
//!
//! The argument requires that charging later never leads to more room later. This does not hold for
//! a queue, where the instant decides about other requests' turns, or for a bucket that refills in
//! intervals, where a charge can start an interval.
//! [`Policy::with_lease`](crate::Policy::with_lease) rejects both.

use core::time::Duration;

use crate::Micros;

/// The quota share that a replica may hold and spend without calling the store.
///
/// ```
/// use tollgate_core::{Lease, Policy, Quota};
///
/// let hot = Policy::token_bucket("hot", Quota::per_second(10_000))?.with_lease(Lease::of(1, 20))?;
/// # let _ = hot;
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    numerator: u32,
    denominator: u32,
    ttl: Micros,
}

impl Lease {
    /// The shortest time to live for leased units. Less than a few round trips is not useful.
    pub const MIN_TTL: Duration = Duration::from_millis(10);

    /// Leases up to `numerator / denominator` of the capacity to each replica at a time, for one
    /// second.
    pub const fn of(numerator: u32, denominator: u32) -> Self {
        Self { numerator, denominator, ttl: Micros::new(1_000_000) }
    }

    /// Sets the time to live for leased units. Units neither spent nor returned by then are lost to
    /// the quota.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Returns the time to live for leased units.
    pub const fn time_to_live(&self) -> Micros {
        self.ttl
    }

    /// Returns the largest number of units that a replica may hold at a time, at least 1.
    pub fn units(&self, capacity: u64) -> u64 {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        let units = u128::from(capacity) * numerator / denominator.max(1);
        u64::try_from(units).unwrap_or(capacity).clamp(1, capacity)
    }

    /// Whether this is a valid share: more than 0 and at most 1.
    pub(crate) const fn is_share(&self) -> bool {
        self.numerator > 0 && self.numerator <= self.denominator
    }

    /// Returns the quota share as numerator and denominator, not reduced.
    pub const fn share(&self) -> (u32, u32) {
        (self.numerator, self.denominator)
    }
}

/// A twentieth of the capacity, for one second.
impl Default for Lease {
    fn default() -> Self {
        Self::of(1, 20)
    }
}

/// A store's answer to a request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The units that may be spent from now on. Zero means that no block was granted.
    pub units: u64,
    /// The time from now to the last instant at which the units may be spent.
    pub lasts: Micros,
    /// The units that remain after subtracting all blocks.
    pub remaining: u64,
    /// The shortest time until the entire quota is available again.
    pub reset_after: Micros,
    /// The time until a unit becomes available, if no unit was granted.
    pub retry_after: Micros,
}
