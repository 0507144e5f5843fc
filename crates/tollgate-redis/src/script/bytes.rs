//! Numbers in the script's encoding: unsigned and big-endian.

use tollgate_core::Timestamp;

/// Appends a number's last `N` bytes, big-endian.
pub(crate) fn put<const N: usize>(out: &mut Vec<u8>, number: u64) {
    debug_assert!(N == 8 || number >> (8 * N) == 0, "{number} does not fit {N} bytes");
    out.extend_from_slice(&number.to_be_bytes()[8 - N..]);
}

/// Clamps a number so that Lua represents it exactly. No quota or wait is larger, so clamping makes
/// no difference.
pub(crate) fn exact(number: u64) -> u64 {
    number.min(Timestamp::MAX.as_micros())
}
