//! Endpoint names. Each name becomes a metric series, so their number is bounded.

use std::collections::HashMap;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;

/// Numbers names in the order of first use, up to a bound. A lookup takes no lock and does not
/// allocate.
#[derive(Debug)]
pub(super) struct Endpoints {
    numbers: ArcSwap<HashMap<Box<str>, usize, RandomState>>,
    bound: usize,
}

/// The number for all names beyond the bound.
pub(crate) const OTHER: usize = 0;

impl Endpoints {
    pub(super) fn new(bound: usize) -> Self {
        Self { numbers: ArcSwap::default(), bound }
    }

    /// The count of numbers, including [`OTHER`].
    pub(super) fn numbers(&self) -> usize {
        self.bound + 1
    }

    pub(super) fn number(&self, name: &str) -> usize {
        let numbers = self.numbers.load();
        match numbers.get(name) {
            Some(number) => *number,
            None if numbers.len() < self.bound => self.add(name),
            None => OTHER,
        }
    }

    #[cold]
    fn add(&self, name: &str) -> usize {
        self.numbers.rcu(|numbers| {
            let mut numbers = HashMap::clone(numbers);
            let next = numbers.len() + 1;
            if next <= self.bound {
                numbers.entry(name.into()).or_insert(next);
            }
            numbers
        });
        self.numbers.load().get(name).copied().unwrap_or(OTHER)
    }

    pub(super) fn name(&self, number: usize) -> String {
        let numbers = self.numbers.load();
        let name = numbers.iter().find(|(_, known)| **known == number).map(|(name, _)| &**name);
        name.unwrap_or("other").to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_bound_are_other() {
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
            // A name that got no number at first may get none later either.
            assert!(seen.iter().all(|seen| seen[n] == *number || seen[n] == OTHER));
        }
    }
}
