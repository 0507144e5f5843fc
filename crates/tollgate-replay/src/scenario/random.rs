//! Random numbers that are the same on every machine.

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is at least 1.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// Returns an exponentially distributed number with this mean.
    // Von Neumann's method only compares numbers, so no machine rounds differently.
    pub(crate) const fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0_u64;
        loop {
            let first = self.next();
            let (mut last, mut falls) = (first, 0_u32);
            loop {
                let next = self.next();
                if next >= last {
                    break;
                }
                (last, falls) = (next, falls + 1);
            }
            if falls % 2 == 0 {
                let fraction = ((first as u128 * mean as u128) >> 64) as u64;
                return whole.saturating_mul(mean).saturating_add(fraction);
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_has_its_mean_and_tail() {
        let mut random = Random::new(1);
        let all: Vec<_> = (0..100_000).map(|_| random.exponential(1_000)).collect();
        let mean = all.iter().sum::<u64>() / 100_000;
        assert!((990..1_010).contains(&mean), "{mean}");
        // A share of 1/e³ is above three times the mean.
        let tail = all.iter().filter(|gap| **gap > 3_000).count();
        assert!((4_700..5_250).contains(&tail), "{tail}");
    }
}
