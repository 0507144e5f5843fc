//! The length and the seeds for random tests.

use std::ops::Range;

/// Whether `TOLLGATE_LONG=1` requests long tests.
pub fn is_long() -> bool {
    std::env::var_os("TOLLGATE_LONG").is_some_and(|value| value == "1")
}

/// Returns the seeds for a random test. They start at the number in `TOLLGATE_SEED`. If the
/// variable is unset, each run uses different seeds.
///
/// The function prints the variable, and test runners show the output when a test fails.
pub fn seeds(count: u64) -> Range<u64> {
    let first = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| {
            panic!("TOLLGATE_SEED={seed}: expected a number such as 1000");
        }),
        // 32 bits are enough to avoid repetition, and short enough to type.
        Err(_) => fastrand::u32(..).into(),
    };
    println!("TOLLGATE_SEED={first} repeats this test");
    first..first.saturating_add(count)
}

/// Returns a single seed for a random test. See [`seeds`].
pub fn seed() -> u64 {
    seeds(1).start
}
