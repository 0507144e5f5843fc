//! Whose quota is used.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Whose quota is used: a client address, a user, an API key, or everybody.
///
/// A key is a string of bytes and means nothing to a store. Two keys are one
/// exactly when their bytes are equal, so whoever makes keys out of several parts
/// has to keep the parts apart (the layer writes lengths before them).
///
/// Up to [`Key::INLINE`] bytes live in the key itself; longer ones are shared, so
/// that cloning never copies them. A key is 16 bytes wide because an entry of the
/// in-memory store is a key and a state, and over many keys a decision costs what
/// the cache lines cost that it touches.
///
/// `Debug` shows the length alone: keys hold addresses and secrets, and logs travel.
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Inline {
        len: u8,
        bytes: [u8; Key::INLINE],
    },
    /// A `Vec` behind the `Arc` keeps the pointer thin, which a slice would not.
    Shared(Arc<Vec<u8>>),
}

impl Key {
    /// Keys up to this many bytes are kept without an allocation.
    pub const INLINE: usize = 14;

    /// The one key of a limit that everybody shares.
    pub const GLOBAL: Self = Self(Repr::Inline {
        len: 0,
        bytes: [0; Self::INLINE],
    });

    /// A key of these bytes.
    pub fn new(key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        if key.len() <= Self::INLINE {
            let mut bytes = [0; Self::INLINE];
            bytes[..key.len()].copy_from_slice(key);
            #[expect(clippy::cast_possible_truncation, reason = "at most Key::INLINE")]
            Self(Repr::Inline {
                len: key.len() as u8,
                bytes,
            })
        } else {
            Self(Repr::Shared(Arc::new(key.to_vec())))
        }
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len).min(Self::INLINE)],
            Repr::Shared(bytes) => bytes,
        }
    }

    /// Bytes held outside the key itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Shared(bytes) => bytes.capacity() + size_of::<Vec<u8>>() + 2 * size_of::<usize>(),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            // The unused bytes are zero in both, so that whole arrays compare in two words.
            (Repr::Inline { len: a, bytes: x }, Repr::Inline { len: b, bytes: y }) => {
                a == b && x == y
            }
            (Repr::Shared(x), Repr::Shared(y)) => x == y,
            _ => false,
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
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
    fn a_key_is_two_words_wide() {
        assert_eq!(size_of::<Key>(), 16);
    }

    #[test]
    fn keys_are_equal_exactly_when_their_bytes_are() {
        let short = [
            b"a".as_slice(),
            b"a\0",
            b"",
            b"13-bytes-long",
            b"14-bytes-long-",
        ];
        let long = [b"fifteen bytes !".as_slice(), b"fifteen bytes ?", &[0; 200]];
        let all: Vec<_> = short.iter().chain(&long).collect();
        for (i, x) in all.iter().enumerate() {
            assert_eq!(Key::new(x).as_bytes(), **x);
            for (j, y) in all.iter().enumerate() {
                assert_eq!(Key::new(x) == Key::new(y), i == j, "{x:?} {y:?}");
            }
        }
    }

    #[test]
    fn debug_keeps_the_secret() {
        assert_eq!(
            format!("{:?}", Key::from("sk_live_1234567890")),
            "Key(18 bytes)"
        );
    }
}
