//! The cost of a request.

/// The number of units that a request takes from a quota. A plain request costs 1.
///
/// A cost of 0 is always allowed and leaves no trace: asking for nothing is how
/// one reads a limit without using it.
///
/// ```
/// use tollgate_core::Cost;
///
/// let cost = Cost::ONE.plus(Cost::new(4));
/// assert_eq!(cost.get(), 5);
/// ```
///
/// # Conversions
///
/// Functions that take a cost accept a `u64`, also as a plain literal: `.cost(5)`. Convert other
/// integers to `u64` first, `u64::from(tokens)` or `text.len() as u64`. With a second `From` the
/// compiler could not choose the type of the literal. Signed integers convert with
/// `Cost::try_from`, because a negative number is not a cost.
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

impl TryFrom<i64> for Cost {
    type Error = NegativeCost;

    fn try_from(units: i64) -> Result<Self, NegativeCost> {
        u64::try_from(units).map(Self).map_err(|_| NegativeCost(units))
    }
}

/// The error of a number that is not a cost, because it is negative.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cost cannot be negative: expected a number of units such as 5, not {0}")]
pub struct NegativeCost(i64);

crate::debug_as_display!(NegativeCost);

#[cfg(test)]
mod tests {
    use super::Cost;

    #[test]
    fn a_negative_number_is_not_a_cost() {
        assert_eq!(Cost::try_from(7_i64), Ok(Cost::new(7)));
        let error = Cost::try_from(-7_i64).unwrap_err().to_string();
        assert_eq!(
            error,
            "a cost cannot be negative: expected a number of units such as 5, not -7"
        );
    }

    #[test]
    fn a_literal_is_a_cost() {
        fn units(cost: impl Into<Cost>) -> u64 {
            cost.into().get()
        }
        // A second `From` of an integer would leave the type of the literal open.
        assert_eq!(units(5), 5);
    }
}
