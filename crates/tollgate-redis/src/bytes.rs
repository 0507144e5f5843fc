//! Numbers as the script reads them: unsigned, the highest byte first.

use tollgate_core::Timestamp;

/// The last `N` bytes of a number, the highest first.
pub(crate) fn put<const N: usize>(out: &mut Vec<u8>, number: u64) {
    debug_assert!(N == 8 || number >> (8 * N) == 0, "{number} does not fit {N} bytes");
    out.extend_from_slice(&number.to_be_bytes()[8 - N..]);
}

/// A number that is exact in Lua. Larger units and waits make no difference: no quota is as large,
/// and no wait is as long.
pub(crate) fn exact(number: u64) -> u64 {
    number.min(Timestamp::MAX.as_micros())
}
