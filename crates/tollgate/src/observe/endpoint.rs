//! The names of endpoints. Each name becomes series of metrics, so their number is bounded.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;

/// Numbers names in the order of their arrival, up to a bound. A look-up takes no lock and
/// allocates nothing.
#[derive(Debug)]
pub(super) struct Endpoints {
    hasher: RandomState,
    /// Open addressing with twice as many slots as names.
    slots: Box<[Slot]>,
    bound: usize,
    taken: AtomicUsize,
}

/// A name and its number.
type Slot = OnceLock<(Box<str>, usize)>;

/// The number of all names beyond the bound.
pub(crate) const OTHER: usize = 0;

impl Endpoints {
    pub(super) fn new(bound: usize) -> Self {
        let slots = (2 * bound).max(1).next_power_of_two();
        Self {
            hasher: RandomState::default(),
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            bound,
            taken: AtomicUsize::new(0),
        }
    }

    /// The count of numbers, including [`OTHER`].
    pub(super) fn numbers(&self) -> usize {
        self.bound + 1
    }

    /// The number of a name, which it keeps.
    pub(super) fn number(&self, name: &str) -> usize {
        let mask = self.slots.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "only some bits are wanted")]
        let first = self.hasher.hash_one(name) as usize;
        // One slot is always empty.
        for step in 0..self.slots.len() {
            let slot = &self.slots[(first + step) & mask];
            let (found, number) = match slot.get() {
                Some(entry) => entry,
                None if self.taken.load(Ordering::Relaxed) >= self.bound => return OTHER,
                None => slot.get_or_init(|| {
                    // Two names can arrive at once for the last number; the later name becomes
                    // `OTHER`.
                    let number = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
                    (name.into(), if number > self.bound { OTHER } else { number })
                }),
            };
            if **found == *name {
                return *number;
            }
        }
        OTHER
    }

    /// The name of a number.
    pub(super) fn name(&self, number: usize) -> &str {
        let mut taken = self.slots.iter().filter_map(OnceLock::get);
        let found = taken.find(|(_, taken)| number != OTHER && *taken == number);
        found.map_or("other", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_what_is_beyond_the_bound_is_other() {
        let endpoints = Endpoints::new(3);
        let numbers: Vec<_> = ["/a", "/b", "/a", "/c", "/d", "/b", "/e", "/d"]
            .map(|name| endpoints.number(name))
            .into();
        assert_eq!(numbers, [1, 2, 1, 3, OTHER, 2, OTHER, OTHER]);
        let names: Vec<_> = (0..endpoints.numbers()).map(|number| endpoints.name(number)).collect();
        assert_eq!(names, ["other", "/a", "/b", "/c"]);
    }

    #[test]
    fn threads_agree_on_numbers() {
        let endpoints = Endpoints::new(50);
        let all = || (0..100).map(|n| endpoints.number(&n.to_string())).collect::<Vec<_>>();
        let seen: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let numbers = all();
        for (n, number) in numbers.iter().enumerate() {
            assert!(*number <= 50);
            assert!(*number == OTHER || endpoints.name(*number) == n.to_string());
            // One that lost the race for a number at first may not have one later either.
            assert!(seen.iter().all(|seen| seen[n] == *number || seen[n] == OTHER));
        }
    }
}
