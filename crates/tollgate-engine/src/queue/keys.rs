//! Sets of a request's keys.

/// A set of a request's keys, by the positions of their charges. A request has at most 64 charges
/// ([`Limits::MAX`](crate::Limits::MAX)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(pub(super) u64);

impl KeySet {
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn contains(self, key: usize) -> bool {
        self.0 & (1 << key) != 0
    }

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |key| self.contains(*key))
    }
}

impl FromIterator<usize> for KeySet {
    fn from_iter<I: IntoIterator<Item = usize>>(keys: I) -> Self {
        Self(keys.into_iter().fold(0, |set, key| set | 1 << key))
    }
}
