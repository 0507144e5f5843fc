//! The algorithms by definition: how many units count, given all of a key's charges.
//!
//! These functions look at every charge each time, and have no state. They share no code with the
//! core, and none with [`reference`](crate::reference), which calls the core's functions.

use std::fmt;

use tollgate_core::{Algorithm, LeakyMode, Policy, Refill, Resolution};

use super::history::START;

/// Units that were charged, or were refunded if `units` is negative.
#[derive(Clone, Copy)]
pub(super) struct Units {
    /// In microseconds.
    pub(super) at: u64,
    pub(super) units: i64,
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} µs", self.units, self.at.saturating_sub(START))
    }
}

/// The units that count at `now`, rounded up. Instants never decrease from a charge to the next,
/// because time stops while a clock is behind.
pub(super) fn counted(policy: &Policy, charges: &[Units], now: u64) -> u64 {
    let now = charges.last().map_or(now, |last| now.max(last.at));
    let Some(algorithm) = policy.algorithm() else { return 0 };
    let window = policy.window().get();
    let sum = |counts: &dyn Fn(u64) -> bool| -> u64 {
        let units = charges.iter().filter(|it| counts(it.at)).map(|it| it.units).sum::<i64>();
        units.max(0).unsigned_abs()
    };
    match algorithm {
        Algorithm::FixedWindowCounter => sum(&|at| at / window == now / window),
        Algorithm::SlidingWindowLog { resolution } => {
            let grid = grid(policy, resolution);
            sum(&|at| at.next_multiple_of(grid) + window > now)
        }
        Algorithm::ConcurrentRequests => sum(&|at| at + window > now),
        Algorithm::SlidingWindowCounter => {
            let index = now / window;
            let previous = sum(&|at| at / window + 1 == index);
            let share = u128::from(previous) * u128::from(window - now % window);
            let share = share.div_ceil(u128::from(window));
            sum(&|at| at / window == index) + u64::try_from(share).expect("a part of `previous`")
        }
        Algorithm::TokenBucket { refill: Refill::Interval } => interval(policy, charges, now),
        Algorithm::TokenBucket { refill: Refill::Greedy } | Algorithm::LeakyBucket { .. } => {
            let units = level(policy, charges, now).div_ceil(u128::from(window));
            u64::try_from(units).expect("no more than all charges")
        }
    }
}

/// The grid to which a log rounds up instants.
fn grid(policy: &Policy, resolution: Resolution) -> u64 {
    let is_exact = match resolution {
        Resolution::Auto => policy.quota().limit() <= 1_000,
        Resolution::Exact => true,
        Resolution::Thousandth => false,
    };
    if is_exact { 1 } else { policy.window().get().div_ceil(1_000) }
}

/// Returns a bucket's level at `now`, if `limit` units drain per window. A unit weighs a window, so
/// levels are integers.
fn level(policy: &Policy, charges: &[Units], now: u64) -> u128 {
    let (mut level, mut at) = (0_u128, 0);
    for charge in charges.iter().chain([&Units { at: now, units: 0 }]) {
        let drained = u128::from(charge.at - at) * u128::from(policy.quota().limit());
        let weight = u128::from(charge.units.unsigned_abs()) * u128::from(policy.window().get());
        level = level.saturating_sub(drained);
        level = if charge.units < 0 { level.saturating_sub(weight) } else { level + weight };
        at = charge.at;
    }
    level
}

/// Returns the units missing from a bucket that is refilled at each interval's end. The first
/// interval starts with the first charge to a full bucket.
fn interval(policy: &Policy, charges: &[Units], now: u64) -> u64 {
    let (limit, window) = (policy.quota().limit(), policy.window().get());
    let (mut missing, mut start) = (0_u64, 0);
    for charge in charges.iter().chain([&Units { at: now, units: 0 }]) {
        while missing > 0 && start + window <= charge.at {
            missing = missing.saturating_sub(limit);
            start += window;
        }
        if missing == 0 {
            start = charge.at;
        }
        missing = missing.saturating_add_signed(charge.units);
    }
    missing
}

/// Returns the least that a greedy bucket refunds from the charge at `position` of its flow, if the
/// request did not need `surplus` of its units.
///
/// The bucket does not refund units that it has already refilled. If all refilled units belong to
/// this charge, `surplus` minus these units remain. But the bucket may have refilled earlier charges
/// first. So if its level just after the charge, minus the refill and other refunds since then, is
/// larger, it refunds this many units. The refill of a microsecond is lost, because a receipt
/// contains the level as a time.
pub(super) fn refund(
    policy: &Policy,
    flow: &[Units],
    position: usize,
    surplus: u64,
    now: u64,
) -> u64 {
    let window = u128::from(policy.window().get());
    let charge = flow[position];
    let refilled = u128::from(now - charge.at) * u128::from(policy.quota().limit());
    let others = flow[position + 1..].iter().filter(|it| it.units < 0);
    let refunded = others.map(|it| u128::from(it.units.unsigned_abs())).sum::<u128>() * window;
    let microsecond = u128::from(policy.quota().limit());
    let lost = refilled + refunded + microsecond;
    let left = level(policy, &flow[..=position], charge.at).saturating_sub(lost);
    let own = (u128::from(surplus) * window).saturating_sub(refilled);
    let missing = level(policy, flow, now);
    let least = left.max(own).min(u128::from(surplus) * window).min(missing);
    u64::try_from((least / window).saturating_sub(1)).expect("at most the surplus")
}

/// How long a queue delays the next request: until the work before it has drained.
pub(super) fn delay(policy: &Policy, charges: &[Units], now: u64) -> u64 {
    let Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) = policy.algorithm() else {
        return 0;
    };
    let seen = charges.last().map_or(now, |last| now.max(last.at));
    let drains = level(policy, charges, seen).div_ceil(u128::from(policy.quota().limit()));
    seen - now + u64::try_from(drains).expect("a short time")
}

/// Whether the last of these charges, made at `now`, was within the policy. A bucket that is
/// refilled in intervals is judged by its promise instead of its level, because refunded or foreign
/// charges also start intervals: in any span, it grants its capacity and `limit` units per interval
/// that ends.
pub(super) fn fits(policy: &Policy, charges: &[Units], now: u64, more: u64) -> bool {
    let Some(last) = charges.last() else { return true };
    let capacity = policy.capacity() + more;
    if !super::generate::is_interval(policy) {
        return counted(policy, charges, now) <= capacity;
    }
    let mut sum = 0;
    charges.iter().rev().all(|first| {
        sum += first.units;
        let ends = (last.at - first.at) / policy.window().get() + 1;
        let most = capacity + policy.quota().limit() * ends;
        sum <= most.cast_signed()
    })
}

/// A time after which no unit counts, even if a debt of twice the capacity is left.
pub(super) fn quiet(policy: &Policy) -> u64 {
    let windows = 2 * policy.capacity().div_ceil(policy.quota().limit()) + 2;
    policy.window().get() * windows
}
