//! Rounds in which peers take turns, to cancel noise.

use std::fmt;

/// A peer: runs for a moment, and returns its measurement.
pub(crate) type Peer<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// The measurements of each peer, one number per round.
///
/// Each round starts with another peer, so all peers suffer equally from the cache contents that
/// their predecessors leave. Before the first round, all peers run one time to warm up.
pub(crate) fn interleave(peers: &mut [Peer<'_>], rounds: usize) -> Vec<Vec<f64>> {
    for peer in peers.iter_mut() {
        peer();
    }
    let mut measured = vec![Vec::with_capacity(rounds); peers.len()];
    for round in 0..rounds {
        for turn in 0..peers.len() {
            let peer = (round + turn) % peers.len();
            measured[peer].push(peers[peer]());
        }
    }
    measured
}

/// The median, minimum and maximum of some numbers.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<_> = numbers.into_iter().collect();
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
