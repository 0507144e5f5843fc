//! `Retry-After` in whole seconds.

use std::time::Duration;

use tollgate_core::{Key, Micros, Timestamp};

/// Returns the seconds for `Retry-After`: the wait rounded up, at least 1, plus up to `jitter`.
///
/// `seed`, derived from the keys, and the window number determine the jitter, so a client cannot
/// retry for a shorter wait.
pub(crate) fn seconds_to_wait(
    retry_after: Micros,
    jitter: Duration,
    seed: u64,
    decided_at: Timestamp,
    window: Micros,
) -> u64 {
    let least = retry_after.as_secs_ceil().max(1);
    let choices = u128::from(jitter.as_secs()) + 1;
    if choices == 1 {
        return least;
    }
    let number = decided_at.as_micros() / window.get().max(1);
    // The high half of the product maps a hash evenly to the choices.
    let added = (u128::from(mix(seed ^ mix(number))) * choices) >> 64;
    least.saturating_add(u64::try_from(added).unwrap_or(0))
}

/// Returns a number that is the same for a client on all replicas (FNV-1a over its keys).
pub(crate) fn seed_of<'a>(keys: impl Iterator<Item = &'a Key>) -> u64 {
    let step = |seed: u64, byte: &u8| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    keys.fold(0xcbf2_9ce4_8422_2325, |seed, key| key.as_bytes().iter().fold(seed, step))
}

/// The SplitMix64 finalizer: each result bit depends on each bit of `x`.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Micros = Micros::new(60_000_000);
    const JITTER: Duration = Duration::from_secs(9);

    fn seconds(retry_after: u64, seed: u64, at: u64) -> u64 {
        let (retry_after, at) = (Micros::new(retry_after), Timestamp::from_micros(at));
        seconds_to_wait(retry_after, JITTER, seed, at, WINDOW)
    }

    #[test]
    fn wait_rounds_up_to_at_least_one() {
        for (micros, expected) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
            let wait = Micros::new(micros);
            let seconds = seconds_to_wait(wait, Duration::ZERO, 7, Timestamp::EPOCH, WINDOW);
            assert_eq!(seconds, expected);
        }
    }

    #[test]
    fn jitter_only_adds_up_to_bound() {
        let drawn: Vec<_> = (0..1_000).map(|seed| seconds(5_000_000, seed, 0)).collect();
        assert_eq!(drawn.iter().min(), Some(&5));
        assert_eq!(drawn.iter().max(), Some(&14));
    }

    #[test]
    fn jitter_is_stable_within_window() {
        let early = seconds(50_000_000, 3, 600_000_000);
        let late = seconds(20_000_000, 3, 630_000_000);
        assert_eq!(early - 50, late - 20);
        assert!((0..20).any(|n| seconds(1, 3, n * 60_000_000) != seconds(1, 3, 0)));
    }
}
