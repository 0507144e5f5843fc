//! How many units a key needs, and how large its blocks should be.

use crate::clock::Moment;

/// Whether a key is busy enough for blocks, and how large they should be.
///
/// A key starts exact. `HOT` decisions within the lease time make it *hot*. The first block is
/// small, and each block that is used up within half its time doubles the next. A block that is
/// mostly unspent after three quarters of the lease time halves the next, and a block that is
/// hardly used makes the key exact again, because rare requests to Redis cost little.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Demand {
    /// The lease time, in microseconds.
    ttl: u64,
    /// The maximum block size, in units.
    most: u64,
    /// The number of decisions by Redis in this period.
    exact: u32,
    period_began: Moment,
    size: u64,
    is_hot: bool,
}

/// The number of decisions within the lease time that make a key hot. A block costs one call, the
/// same as a decision, so blocks do not pay for keys with fewer decisions.
pub(super) const HOT: u32 = 16;
/// The first block's size, in units.
const FIRST: u64 = 8;
/// A block of which fewer units are spent was not worth its call.
const FEW: u64 = 4;

impl Demand {
    pub(super) fn new(ttl: u64, most: u64, now: Moment) -> Self {
        let size = FIRST.min(most);
        Self { ttl, most, exact: 0, period_began: now, size, is_hot: false }
    }

    /// Counts a decision by Redis. Returns whether the key is hot.
    pub(super) fn count(&mut self, now: Moment) -> bool {
        if self.is_over(now) {
            (self.exact, self.period_began) = (0, now);
        }
        self.exact = self.exact.saturating_add(1);
        self.is_hot |= self.exact >= HOT;
        self.is_hot
    }

    /// Whether the period of the last count is over.
    pub(super) const fn is_over(&self, now: Moment) -> bool {
        now.saturating_sub(self.period_began) >= self.ttl
    }

    pub(super) const fn is_hot(&self) -> bool {
        self.is_hot
    }

    /// Returns the next block's size, in units.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Records that a block was used up this long after its first use.
    pub(super) fn used_up(&mut self, after: u64) {
        if after < self.ttl / 2 {
            self.size = self.size.saturating_mul(2).min(self.most);
        }
    }

    /// Records that a block with `units` units is returned after `used` were spent.
    pub(super) fn returned(&mut self, units: u64, used: u64) {
        if used < units / 2 {
            self.size = (self.size / 2).max(1);
        }
        if used < units.min(FEW) {
            self.cool();
        }
    }

    /// Records that no block was granted. An idle key stops requesting blocks until a client needs
    /// one.
    pub(super) fn went_without(&mut self, now: Moment) {
        if self.is_over(now) {
            self.cool();
        }
    }

    /// Makes the key exact again, until it has enough decisions by Redis.
    pub(super) fn cool(&mut self) {
        (self.is_hot, self.exact, self.size) = (false, 0, FIRST.min(self.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_decisions_make_a_key_hot() {
        let mut demand = Demand::new(1_000, 100, 0);
        assert!((0..10).all(|_| !demand.count(0)));
        // Decisions from an earlier period do not count.
        assert!((1..HOT).all(|_| !demand.count(1_000)));
        assert!(demand.count(1_999));
    }

    #[test]
    fn block_size_adapts_to_use() {
        let mut demand = Demand::new(1_000, 50, 0);
        for size in [8, 16, 32, 50, 50] {
            assert_eq!(demand.size(), size);
            demand.used_up(499);
        }
        demand.used_up(500);
        demand.returned(50, 25);
        assert_eq!(demand.size(), 50);
        demand.returned(50, 24);
        assert_eq!(demand.size(), 25);
    }

    #[test]
    fn unused_block_cools_key() {
        let mut demand = Demand::new(1_000, 50, 0);
        for _ in 0..HOT {
            demand.count(0);
        }
        demand.returned(8, 4);
        assert!(demand.is_hot());
        demand.returned(8, 3);
        assert!(!demand.is_hot());
        // For small blocks, spending all units is enough.
        let mut small = Demand::new(1_000, 2, 0);
        assert!((1..HOT).all(|_| !small.count(0)) && small.count(0));
        small.returned(2, 2);
        assert!(small.is_hot());
    }
}
