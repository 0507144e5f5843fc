//! The integer scale on which a bucket fills and drains without rounding.

use crate::math::gcd;
use crate::{Charged, Micros, Timestamp};

/// With `g = gcd(limit, window in µs)`, one unit weighs `window / g`, and `limit / g` is restored
/// per microsecond. These are the smallest integers in the quota's ratio, so a bucket is never
/// rounded and does not drift at any rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// The weight per unit.
    pub(crate) unit: u64,
    /// The weight restored per microsecond.
    pub(crate) rate: u64,
}

/// Lua numbers are doubles: integers are exact up to here, and 2^53 + 1 reads as 2^53.
const EXACT: u128 = 1 << 53;

/// The refunded units are counted up to here. A single refund, at most the capacity, then still
/// leaves the count exact.
const MAX_REFUNDED: u64 = 1 << 52;

/// Restarts a bucket's count of refunded units before it becomes inexact, and returns whether it
/// did. Earlier charges can then no longer be refunded.
pub(crate) const fn restart(refunded: &mut u64) -> bool {
    let restarts = *refunded > MAX_REFUNDED;
    if restarts {
        *refunded = 0;
    }
    restarts
}

impl Scale {
    pub(crate) const fn new(limit: u64, window: Micros) -> Self {
        let g = gcd(limit, window.get());
        Self { unit: window.get() / g, rate: limit / g }
    }

    /// How much of a charge of `units` can be refunded at `now` from a bucket that has drained
    /// continuously since, and from which `refunded` has been refunded so far. Afterwards no more
    /// is admitted than if these units had never been charged.
    ///
    /// Units that drained may be the same units, so this is the largest amount that certainly has
    /// not drained. There are two lower bounds, because the bucket contained at least these units
    /// just after the charge, and because its level then is known from the receipt.
    pub(crate) fn refundable(
        self,
        charged: &Charged,
        units: u64,
        refunded: u64,
        now: Timestamp,
    ) -> u64 {
        // Another version may have charged more than this bucket contains.
        let units = units.min(charged.cost.get()).saturating_mul(self.unit);
        let drained = now.since(charged.charged_at).get().saturating_mul(self.rate);
        // The level was reported as a time, rounded up to a microsecond.
        let level = match charged.resets_at.since(now).get() {
            0 => 0,
            micros => (micros - 1).saturating_mul(self.rate).saturating_add(1),
        };
        let since = refunded.saturating_sub(charged.refunded);
        let level = if refunded < charged.refunded { 0 } else { level.saturating_sub(since) };
        units.saturating_sub(drained).max(level.min(units))
    }

    /// Whether a bucket with this capacity stays exact even if its debt reaches the capacity.
    pub(crate) fn holds(self, capacity: u64) -> bool {
        2 * u128::from(capacity) * u128::from(self.unit) <= EXACT
    }
}

/// Returns the limit nearest to `limit`, and not above `max`, that gives an exact bucket. The
/// capacity is `burst` if set, otherwise the limit itself.
///
/// A limit `k·g`, where `g` divides the window, has a unit of at most `window / g`. So for each
/// divisor it is enough to check the multiples next to `limit`.
pub(crate) fn nearest_limit(
    limit: u64,
    window: Micros,
    burst: Option<u64>,
    max: u64,
) -> Option<u64> {
    let builds = |candidate: u64| {
        (1..=max).contains(&candidate)
            && Scale::new(candidate, window).holds(burst.unwrap_or(candidate))
    };
    divisors(window.get())
        .flat_map(|g| {
            // If the capacity equals the limit, only multiples up to `top` can build.
            let unit = u128::from(window.get() / g);
            let top = u64::try_from(EXACT / 2 / unit).unwrap_or(u64::MAX);
            let multiple = (limit / g).min(if burst.is_none() { top } else { u64::MAX });
            [multiple, multiple + 1].map(|k| k.saturating_mul(g))
        })
        .filter(|&candidate| builds(candidate))
        .min_by_key(|&candidate| candidate.abs_diff(limit))
}

/// All divisors of `n`, by trial division up to its square root. That takes at most 6 million steps
/// for 400 days, and runs only to word an error.
fn divisors(n: u64) -> impl Iterator<Item = u64> {
    (1..=n.isqrt()).filter(move |d| n.is_multiple_of(*d)).flat_map(move |d| [d, n / d])
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Micros = Micros::new(86_400_000_000);
    const MAX: u64 = 1_000_000_000_000;

    #[test]
    fn scale_is_in_lowest_terms() {
        let scale = Scale::new(100, Micros::new(60_000_000));
        assert_eq!((scale.unit, scale.rate), (600_000, 1));
        let scale = Scale::new(3, Micros::new(7_000_000));
        assert_eq!((scale.unit, scale.rate), (7_000_000, 3));
    }

    #[test]
    fn nearest_limit_matches_exhaustive_search() {
        for (limit, window, burst) in [
            (123_457_u64, DAY, None),
            (999_983, Micros::new(999_999_937), None),
            (123_457, DAY, Some(1_000_000)),
            (5_000, Micros::new(34_560_000_000_001), None),
            (1, Micros::new(86_400_000_001), Some(10_000_000)),
        ] {
            let holds = |l: u64| Scale::new(l, window).holds(burst.unwrap_or(l));
            let nearest = (0..2_000_000_u64)
                .flat_map(|d| [limit.saturating_sub(d), limit + d])
                .find(|&l| l > 0 && holds(l));
            let found = nearest_limit(limit, window, burst, MAX);
            let distance = |l: Option<u64>| l.map(|l| l.abs_diff(limit));
            match nearest {
                Some(_) => assert_eq!(distance(found), distance(nearest), "{limit} {window:?}"),
                None => assert!(distance(found) > Some(2_000_000) || found.is_none()),
            }
        }
    }
}
