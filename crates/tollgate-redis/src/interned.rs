//! Byte strings with numbers.

use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Distinct byte strings, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Interned {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    numbers: HashTable<usize>,
    hasher: RandomState,
}

impl Interned {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the strings in the order of their numbers.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| &self.bytes[span(&self.ends, index)])
    }

    /// Returns a string's number, and adds the string if it is new.
    pub(crate) fn number(&mut self, bytes: &[u8]) -> u64 {
        let Self { bytes: all, ends, numbers, hasher } = self;
        let hash = hasher.hash_one(bytes);
        let found = numbers.find(hash, |&index| &all[span(ends, index)] == bytes);
        let index = found.copied().unwrap_or_else(|| {
            let index = ends.len();
            all.extend_from_slice(bytes);
            ends.push(all.len());
            numbers.insert_unique(hash, index, |&index| hasher.hash_one(&all[span(ends, index)]));
            index
        });
        index as u64 + 1
    }
}

fn span(ends: &[usize], index: usize) -> Range<usize> {
    let start = if index == 0 { 0 } else { ends[index - 1] };
    start..ends[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_their_numbers() {
        let mut all = Interned::default();
        let strings: Vec<_> =
            (0..500_u32).map(|n| n.to_be_bytes()[n as usize % 4..].to_vec()).collect();
        let mut numbers = std::collections::HashMap::new();
        for string in strings.iter().chain(&strings) {
            let next = numbers.len() as u64 + 1;
            let number = *numbers.entry(string).or_insert(next);
            assert_eq!(all.number(string), number);
        }
        assert_eq!(all.len(), numbers.len());
        for (index, string) in all.iter().enumerate() {
            assert_eq!(numbers[&string.to_vec()], index as u64 + 1);
        }
    }
}
