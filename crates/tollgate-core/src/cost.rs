//! Request costs.

/// The number of units that a request takes from a quota. A normal request costs 1.
///
/// A cost of 0 is always allowed and changes no state. Use it to read a limit without charging it.
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
/// Functions that take a cost accept a `u64`, including a plain literal: `.cost(5)`. Convert other
/// integers to `u64` first, with `u64::from(tokens)` or `text.len() as u64`: a second `From` impl
/// would make the literal's type ambiguous. Signed integers convert with `Cost::try_from`, because
/// a cost cannot be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// A cost of zero units, which is always allowed.
    pub const ZERO: Self = Self(0);

    /// A normal request's cost: one unit.
    pub const ONE: Self = Self(1);

    /// Creates a cost of this many units.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// Returns the number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Adds two costs, saturating. No quota is large enough for the difference to matter.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// One unit, for a normal request.
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

/// Error returned when converting a negative number to a cost.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cost cannot be negative: expected a number of units such as 5, not {0}")]
pub struct NegativeCost(i64);

crate::debug_as_display!(NegativeCost);

#[cfg(test)]
mod tests {
    use super::Cost;

    #[test]
    fn negative_cost_is_an_error() {
        assert_eq!(Cost::try_from(7_i64), Ok(Cost::new(7)));
        let error = Cost::try_from(-7_i64).unwrap_err().to_string();
        assert_eq!(
            error,
            "a cost cannot be negative: expected a number of units such as 5, not -7"
        );
    }

    #[test]
    fn integer_literal_converts_to_cost() {
        fn units(cost: impl Into<Cost>) -> u64 {
            cost.into().get()
        }
        // A second `From` impl for an integer would make the literal's type ambiguous.
        assert_eq!(units(5), 5);
    }
}
