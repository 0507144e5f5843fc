//! Integer arithmetic that the algorithms share.

/// The greatest common divisor. `gcd(0, b)` is `b`.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b
}

/// The 64-bit FNV-1a hash, which is the same in every process and version.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `a · b / divisor`, rounded up. Exact even if the product overflows; saturates if the quotient
/// does. `divisor` must not be zero.
pub(crate) fn mul_div_ceil(a: u64, b: u64, divisor: u64) -> u64 {
    match a.checked_mul(b) {
        // The common case: a 64-bit division is much faster than a 128-bit division.
        Some(product) => product.div_ceil(divisor),
        None => {
            let quotient = (u128::from(a) * u128::from(b)).div_ceil(u128::from(divisor));
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

/// `a · b / divisor`, rounded down. Exact even if the product overflows; saturates if the quotient
/// does. `divisor` must not be zero.
pub(crate) fn mul_div_floor(a: u64, b: u64, divisor: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / divisor,
        None => {
            let quotient = u128::from(a) * u128::from(b) / u128::from(divisor);
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gcd_of_known_pairs() {
        for (a, b, expected) in
            [(12, 18, 6), (7, 13, 1), (0, 5, 5), (5, 0, 5), (1 << 40, 1 << 20, 1 << 20)]
        {
            assert_eq!(gcd(a, b), expected);
        }
    }

    #[test]
    fn products_over_64_bits_divide_exactly() {
        let big = 1 << 53;
        assert_eq!(mul_div_floor(big, big - 1, big), big - 1);
        assert_eq!(mul_div_ceil(big, big - 1, big), big - 1);
        assert_eq!(mul_div_ceil(7, 10, 100), 1);
        assert_eq!(mul_div_floor(7, 10, 100), 0);
        assert_eq!(mul_div_ceil(u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
