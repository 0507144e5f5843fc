//! Sides that take turns in many short rounds, to cancel noise.

use std::fmt;

use crate::Failure;

/// A side's numbers in a round, one for each of its table's columns. NaN stands for none.
pub(crate) type Numbers = Vec<f64>;

/// A measured side: its name, and how it runs for a round.
pub(crate) struct Side<'a> {
    pub(crate) name: &'static str,
    run: Box<dyn FnMut() -> Result<Numbers, Failure> + 'a>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(
        name: &'static str,
        run: impl FnMut() -> Result<Numbers, Failure> + 'a,
    ) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Runs the sides in turns, and returns each side's rounds.
///
/// Each round starts with another side, so all suffer equally from the cache contents that their
/// predecessors leave. If there are several rounds, all sides run one time before them to warm up.
pub(crate) fn take_turns(
    sides: &mut [Side<'_>],
    rounds: usize,
) -> Result<Vec<Vec<Numbers>>, Failure> {
    let mut seen = vec![Vec::with_capacity(rounds); sides.len()];
    for round in usize::from(rounds == 1)..=rounds {
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            let numbers = (sides[side].run)()?;
            if round > 0 {
                seen[side].push(numbers);
            }
        }
    }
    Ok(seen)
}

/// The median, minimum and maximum of some numbers.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    min: f64,
    pub(crate) median: f64,
    max: f64,
}

impl Spread {
    /// NaN if there are no numbers, or if one is NaN.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted = Vec::from_iter(numbers);
        if sorted.iter().any(|number| number.is_nan()) {
            sorted.clear();
        }
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self {
            min: at(0),
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            max: at(last),
        }
    }
}

/// "25.1 (24.8–31.0)" with three significant digits, a single number if all are equal, or a dash.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = self;
        let digits = match median.abs() {
            100.0.. | 0.0 => 0,
            10.0.. => 1,
            0.1.. => 2,
            _ => 4,
        };
        if median.is_nan() {
            f.write_str("–")
        } else if min == max {
            write!(f, "{median:.digits$}")
        } else {
            write!(f, "{median:.digits$} ({min:.digits$}–{max:.digits$})")
        }
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
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]).to_string(), "2.50 (1.00–4.00)");
        assert_eq!(Spread::of([123.4; 2]).to_string(), "123");
    }

    #[test]
    fn missing_number_leaves_no_median() {
        for numbers in [&[f64::NAN, 1.0, 2.0, 3.0][..], &[1.0, 2.0, 3.0, -f64::NAN], &[]] {
            let spread = Spread::of(numbers.iter().copied());
            assert!(spread.median.is_nan(), "{numbers:?}");
            assert_eq!(spread.to_string(), "–");
        }
    }

    #[test]
    fn every_round_starts_with_another_side() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: &'static str| {
            let order = &order;
            Side::new(name, move || {
                order.borrow_mut().push_str(name);
                Ok(vec![1.0])
            })
        };
        let seen = take_turns(&mut [side("a"), side("b"), side("c")], 2).unwrap();
        assert_eq!(order.take(), "abcbcacab");
        assert_eq!(seen, vec![vec![vec![1.0]; 2]; 3]);
        take_turns(&mut [side("a"), side("b")], 1).unwrap();
        assert_eq!(order.take(), "ba");
    }

    #[test]
    fn shuffle_retains_all_numbers() {
        let mut numbers = shuffled(1_000, 7);
        assert_ne!(numbers[..3], [0, 1, 2]);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1_000));
    }
}
