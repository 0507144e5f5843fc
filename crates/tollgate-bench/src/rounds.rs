//! Rounds in which peers take turns, to cancel noise.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Mul;

/// A peer: runs for a moment, and returns its measurement.
pub(crate) type Peer<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// The measurements of each peer, one number per round.
pub(crate) fn interleave(peers: &mut [Peer<'_>], rounds: usize) -> Vec<Vec<f64>> {
    let mut measured = vec![Vec::with_capacity(rounds); peers.len()];
    for (peer, counts) in turns(peers.len(), rounds) {
        let number = peers[peer]();
        if counts {
            measured[peer].push(number);
        }
    }
    measured
}

/// The peers in the order of their turns, and whether a turn counts.
///
/// Each round starts with another peer, so all peers suffer equally from the cache contents that
/// their predecessors leave. Before the first round, all peers run one time to warm up.
pub(crate) fn turns(peers: usize, rounds: usize) -> impl Iterator<Item = (usize, bool)> {
    (0..=rounds)
        .flat_map(move |round| (0..peers).map(move |turn| ((round + turn) % peers, round > 0)))
}

/// The median, minimum and maximum of some numbers.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(numbers: impl IntoIterator<Item = impl Borrow<f64>>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().map(|number| *number.borrow()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self {
            min: at(0),
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            max: at(last),
        }
    }

    /// The spread of the ratios within each round.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Self {
        Self::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
    }
}

/// The same in another unit.
impl Mul<f64> for Spread {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self { min: self.min * factor, median: self.median * factor, max: self.max * factor }
    }
}

/// "25.1 (24.8–31.0)", with the formatter's precision.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        let Self { min, median, max } = self;
        write!(f, "{median:.digits$} ({min:.digits$}–{max:.digits$})")
    }
}

/// Numbers below `count` in random order, the same in every run.
pub(crate) fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut numbers: Vec<_> = (0..count).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_count_averages_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 4.0));
        assert_eq!(format!("{spread:.1}"), "2.5 (1.0–4.0)");
    }

    #[test]
    fn shuffle_retains_all_numbers() {
        let mut numbers = shuffled(1_000, 7);
        assert_ne!(numbers[..3], [0, 1, 2]);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1_000));
    }
}
