//! Encodes a [`Key`] as bytes.
//!
//! A key starts with a tag so that different sources never share keys: an API key with the text
//! `4\x7f\0\0\x01` does not use 127.0.0.1's quota. After the tag, each part is preceded by its
//! length, so ("a:b", "c") and ("a", "b:c") differ. Keys longer than [`Key::INLINE`] are hashed,
//! because bytes on the heap cost a store another cache miss. Secrets are always hashed.
//!
//! A hash is SHA-256 truncated to 13 bytes. These 104 bits suffice because only second preimages
//! matter. If attackers find a collision among their own keys (2^52 work), they only lose a quota,
//! and hitting a given victim's key takes 2^104.

use sha2::{Digest, Sha256};
use tollgate_core::Key;

/// Which source made a key. Shared stores retain these numbers, so they must never change.
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

/// Set in a hashed key's tag. Otherwise a client could send the bytes of another client's
/// hash as a short value.
const HASHED: u8 = 0x80;

const ROOM: usize = Key::INLINE - 1;

pub(super) fn plain(tag: Tag, bytes: &[u8]) -> Key {
    if bytes.len() > ROOM {
        return hashed(tag, &[bytes]);
    }
    let mut key = [0; Key::INLINE];
    key[0] = tag as u8;
    key[1..=bytes.len()].copy_from_slice(bytes);
    Key::new(&key[..=bytes.len()])
}

pub(super) fn joined(tag: Tag, parts: &[&[u8]]) -> Key {
    // Each part is preceded by a length byte.
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

pub(super) enum Decoded<'a> {
    Ipv4([u8; 4]),
    /// Also contains the number of relevant bits, rounded up to full bytes.
    Ipv6([u8; 16], usize),
    Extension(&'a [u8]),
    Header(&'a [u8]),
    Route(&'a [u8]),
    Closure(&'a [u8]),
    Tuple(Vec<&'a [u8]>),
}

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
mod tests;
