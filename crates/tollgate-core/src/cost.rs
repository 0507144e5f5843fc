//! The cost of a request.

/// The number of units that a request takes from a quota. A plain request costs 1.
///
/// A cost of 0 is always allowed and leaves no trace: asking for nothing is how
/// one reads a limit without using it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// The cost of a request that takes no units.
    pub const ZERO: Self = Self(0);

    /// The cost of a plain request: one unit.
    pub const ONE: Self = Self(1);

    /// Makes a cost of this number of units.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// Returns the number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Adds two costs. The sum saturates, because no quota has that many units.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// One unit, a plain request.
impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<u64> for Cost {
    fn from(units: u64) -> Self {
        Self(units)
    }
}
