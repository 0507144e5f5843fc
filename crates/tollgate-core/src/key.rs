//! Keys, under which quotas are stored.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

/// The name under which a quota is stored, such as a client address, a user or an API key. A quota
/// that all clients share has a key as well.
///
/// A key is an opaque byte string. Two keys are equal if their bytes are equal, so keys that
/// consist of several parts must keep these apart (the layer prefixes each part with its length).
///
/// Up to [`Key::INLINE`] bytes are stored in the key itself. Longer keys are shared, so cloning
/// never copies the bytes. A key takes only 16 bytes, because with many keys a decision costs as
/// much as the cache lines its entry occupies.
///
/// `Debug` shows only the length, because keys may contain addresses and secrets.
///
/// ```
/// use tollgate_core::Key;
///
/// let key = Key::new("alice");
/// assert_eq!(&*key.as_bytes(), b"alice");
/// ```
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    /// Up to 14 bytes, stored as little-endian words and zero-padded: `head` holds the first eight,
    /// `middle` the next four, `last` the rest.
    ///
    /// Words, not an array: a key is written just before it is hashed and compared, and a load that
    /// spans two stores has to wait until both have left the store buffer. With an array, this wait
    /// took as long as the rest of the decision.
    Inline { len: u8, last: u16, middle: u32, head: u64 },
    /// A `Vec` inside the `Arc` keeps the pointer thin, unlike a slice.
    Shared(Arc<Vec<u8>>),
}

impl Key {
    /// The longest key, in bytes, that is stored without an allocation.
    pub const INLINE: usize = 14;

    /// The key for a limit that all clients share.
    pub const GLOBAL: Self = Self(Repr::Inline { len: 0, last: 0, middle: 0, head: 0 });

    /// Creates a key from these bytes.
    // With a constant length, the compiler removes all branches.
    #[inline(always)]
    pub fn new(key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        if key.len() > Self::INLINE {
            return Self(Repr::Shared(Arc::new(key.to_vec())));
        }
        let (head, tail) = match key.last_chunk() {
            // The last eight bytes overlap the head, so shift the overlap out.
            Some(last) if key.len() > 8 => {
                (word(&key[..8]), u64::from_le_bytes(*last) >> (8 * (16 - key.len())))
            }
            _ => (word(key), 0),
        };
        #[expect(clippy::cast_possible_truncation, reason = "each takes its bits of the tail")]
        Self(Repr::Inline {
            len: key.len() as u8,
            last: (tail >> 32) as u16,
            middle: tail as u32,
            head,
        })
    }

    /// Returns the key's bytes.
    pub fn as_bytes(&self) -> impl Deref<Target = [u8]> + '_ {
        match &self.0 {
            Repr::Inline { len, last, middle, head } => {
                let mut bytes = [0; Self::INLINE];
                bytes[..8].copy_from_slice(&head.to_le_bytes());
                bytes[8..12].copy_from_slice(&middle.to_le_bytes());
                bytes[12..].copy_from_slice(&last.to_le_bytes());
                KeyBytes::Inline { len: usize::from(*len), bytes }
            }
            Repr::Shared(bytes) => KeyBytes::Shared(bytes),
        }
    }

    /// Returns the number of heap bytes that the key uses.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Shared(bytes) => bytes.capacity() + size_of::<Vec<u8>>() + 2 * size_of::<usize>(),
        }
    }
}

/// Up to eight bytes, read as a zero-padded little-endian word.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        _ if bytes.len() == 8 => bytes.first_chunk().map_or(0, |all| u64::from_le_bytes(*all)),
        (Some(first), Some(last)) => {
            let last = u64::from(u32::from_le_bytes(*last));
            u64::from(u32::from_le_bytes(*first)) | last << (8 * (bytes.len() - 4))
        }
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A key's bytes, unpacked.
enum KeyBytes<'a> {
    Inline { len: usize, bytes: [u8; Key::INLINE] },
    Shared(&'a [u8]),
}

impl Deref for KeyBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..*len],
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (
                Repr::Inline { len, last, middle, head },
                Repr::Inline { len: len2, last: last2, middle: middle2, head: head2 },
            ) => (len, last, middle, head) == (len2, last2, middle2, head2),
            (Repr::Shared(x), Repr::Shared(y)) => x == y,
            _ => false,
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Repr::Inline { len, last, middle, head } => {
                state.write_u64(*head);
                state
                    .write_u64(u64::from(*middle) | u64::from(*last) << 32 | u64::from(*len) << 48);
            }
            Repr::Shared(bytes) => state.write(bytes),
        }
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.as_bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_two_words_wide() {
        assert_eq!(size_of::<Key>(), 16);
    }

    #[test]
    fn key_equality_is_byte_equality() {
        let short = [b"a".as_slice(), b"a\0", b"", b"13-bytes-long", b"14-bytes-long-"];
        let long = [b"fifteen bytes !".as_slice(), b"fifteen bytes ?", &[0; 200]];
        let all: Vec<_> = short.iter().chain(&long).collect();
        for (i, x) in all.iter().enumerate() {
            assert_eq!(*Key::new(x).as_bytes(), ***x);
            for (j, y) in all.iter().enumerate() {
                assert_eq!(Key::new(x) == Key::new(y), i == j, "{x:?} {y:?}");
            }
        }
    }

    #[test]
    fn key_of_any_length_round_trips() {
        let bytes: Vec<u8> = (1..=40).collect();
        for len in 0..=bytes.len() {
            assert_eq!(*Key::new(&bytes[..len]).as_bytes(), bytes[..len]);
        }
    }

    #[test]
    fn debug_hides_the_bytes() {
        assert_eq!(format!("{:?}", Key::from("sk_live_1234567890")), "Key(18 bytes)");
    }
}
