//! Turns what a source found into the bytes of a [`Key`].
//!
//! Every key starts with a tag, so that sources of different sorts never meet: an API
//! key whose text is `4\x7f\0\0\x01` does not spend the quota of 127.0.0.1. After the
//! tag stand the parts, each behind its length, so that ("a:b", "c") and ("a", "b:c")
//! differ. What is longer than [`Key::INLINE`] is hashed, since a key with bytes on the
//! heap costs a store one more cache miss; secrets are hashed at any length.
//!
//! A hash is SHA-256 cut to 13 bytes. 104 bits are enough because only second preimages
//! matter: two keys of an attacker's own that collide (2^52 work) win one quota less
//! than two that do not, while meeting the key of a given victim takes 2^104.

use sha2::{Digest, Sha256};
use tollgate_core::Key;

/// Which source a key is from. The numbers are part of what a shared store keeps: a
/// process of another version that counted them differently would count apart.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Tag {
    Ipv4 = 1,
    Ipv6 = 2,
    ApiKey = 3,
    #[cfg(feature = "jwt")]
    Jwt = 4,
    Extension = 5,
    Header = 6,
    Route = 7,
    Closure = 8,
    Tuple = 9,
    PathParam = 10,
}

/// Set in the tag of a hashed key. Without it a client could spell out the 13 bytes that
/// a victim's longer value hashes to, as a short value of its own.
const HASHED: u8 = 0x80;

/// Bytes that stand beside the tag.
const ROOM: usize = Key::INLINE - 1;

/// A key of fixed form: the caller's bytes have one meaning and need no lengths.
pub(super) fn plain(tag: Tag, bytes: &[u8]) -> Key {
    if bytes.len() > ROOM {
        return hashed(tag, &[bytes]);
    }
    let mut key = [0; Key::INLINE];
    key[0] = tag as u8;
    key[1..=bytes.len()].copy_from_slice(bytes);
    Key::new(&key[..=bytes.len()])
}

/// A key of several parts, readable if it is short.
pub(super) fn joined(tag: Tag, parts: &[&[u8]]) -> Key {
    // Each part has at least one byte of length before it.
    let long = parts.iter().map(|part| part.len() + 1).sum::<usize>() > ROOM;
    if long {
        return hashed(tag, parts);
    }
    let mut key = [0; Key::INLINE];
    key[0] = tag as u8;
    let mut end = 1;
    for part in parts {
        #[expect(clippy::cast_possible_truncation, reason = "less than Key::INLINE")]
        let len = part.len() as u8;
        key[end] = len;
        key[end + 1..=end + part.len()].copy_from_slice(part);
        end += 1 + part.len();
    }
    Key::new(&key[..end])
}

/// A key of several parts that shows none of them.
pub(super) fn hashed(tag: Tag, parts: &[&[u8]]) -> Key {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    let digest = sha.finalize();
    let mut key = [0; Key::INLINE];
    key[0] = tag as u8 | HASHED;
    key[1..].copy_from_slice(&digest[..ROOM]);
    Key::new(key)
}

/// What a key says that hides nothing.
#[cfg(feature = "admin")]
pub(super) enum Decoded<'a> {
    Ipv4([u8; 4]),
    /// With so many bits that count, in whole bytes.
    Ipv6([u8; 16], usize),
    Extension(&'a [u8]),
    Header(&'a [u8]),
    Route(&'a [u8]),
    Closure(&'a [u8]),
    Tuple(Vec<&'a [u8]>),
}

/// Reads what [`plain`] and [`joined`] wrote; none of what is hashed or from elsewhere.
#[cfg(feature = "admin")]
pub(super) fn decode(key: &[u8]) -> Option<Decoded<'_>> {
    let (tag, rest) = key.split_first()?;
    let is = |wanted: Tag| *tag == wanted as u8;
    if is(Tag::Ipv4) {
        return rest.try_into().ok().map(Decoded::Ipv4);
    }
    if is(Tag::Ipv6) && rest.len() <= 16 {
        let mut octets = [0; 16];
        octets[..rest.len()].copy_from_slice(rest);
        return Some(Decoded::Ipv6(octets, 8 * rest.len()));
    }
    let parts = parts(rest)?;
    match parts[..] {
        [value] if is(Tag::Extension) => Some(Decoded::Extension(value)),
        [value] if is(Tag::Route) => Some(Decoded::Route(value)),
        [value] if is(Tag::Closure) => Some(Decoded::Closure(value)),
        [_, value] if is(Tag::Header) => Some(Decoded::Header(value)),
        [_, ..] if is(Tag::Tuple) => Some(Decoded::Tuple(parts)),
        _ => None,
    }
}

/// The parts behind their lengths.
#[cfg(feature = "admin")]
fn parts(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let (part, rest) = rest.split_at_checked(usize::from(*len))?;
        parts.push(part);
        bytes = rest;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_never_run_into_each_other() {
        let lists: &[&[&[u8]]] = &[
            &[b"a:b", b"c"],
            &[b"a", b"b:c"],
            &[b"a", b"b", b"c"],
            &[b"", b"a:bc"],
            &[b"a:bc", b""],
            &[b"a:bc"],
            &[],
            &[b""],
            &[b"", b""],
        ];
        for (i, a) in lists.iter().enumerate() {
            for (j, b) in lists.iter().enumerate() {
                for key in [joined, hashed] {
                    assert_eq!(key(Tag::Tuple, a) == key(Tag::Tuple, b), i == j);
                }
            }
        }
    }

    #[test]
    fn a_short_value_cannot_spell_the_hash_of_a_long_one() {
        let victim = plain(Tag::Closure, b"a tenant with a long name");
        let forged = plain(Tag::Closure, &victim.as_bytes()[1..]);
        assert_eq!(victim.as_bytes().len(), forged.as_bytes().len());
        assert_ne!(victim, forged);
    }

    proptest! {
        #[test]
        fn no_key_needs_the_heap_and_equal_parts_make_equal_keys(
            a in prop::collection::vec(prop::collection::vec(0..3u8, 0..8), 0..5),
            b in prop::collection::vec(prop::collection::vec(0..3u8, 0..8), 0..5),
        ) {
            let borrow = |list: &[Vec<u8>]| joined(
                Tag::Tuple,
                &list.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            );
            prop_assert_eq!(borrow(&a).heap_bytes(), 0);
            prop_assert_eq!(borrow(&a) == borrow(&b), a == b);
        }
    }
}
