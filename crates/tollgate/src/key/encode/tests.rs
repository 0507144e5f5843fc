use proptest::prelude::*;

use super::*;

#[test]
fn parts_are_unambiguous() {
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
fn short_value_cannot_forge_hash() {
    let victim = plain(Tag::Closure, b"a tenant with a long name");
    let forged = plain(Tag::Closure, &victim.as_bytes()[1..]);
    assert_eq!(victim.as_bytes().len(), forged.as_bytes().len());
    assert_ne!(victim, forged);
}

/// Builds side by side use one store, so a source's keys always start with the same byte.
#[test]
fn stored_keys_start_with_their_source() {
    let first = |tag| plain(tag, b"a").as_bytes()[0];
    let tags = [Tag::Ipv4, Tag::Ipv6, Tag::ApiKey, Tag::Extension, Tag::Header];
    assert_eq!(tags.map(first), [1, 2, 3, 5, 6]);
    let tags = [Tag::Route, Tag::Closure, Tag::Tuple, Tag::PathParam];
    assert_eq!(tags.map(first), [7, 8, 9, 10]);
    #[cfg(feature = "jwt")]
    assert_eq!(first(Tag::Jwt), 4);
    assert_eq!(hashed(Tag::Ipv4, &[b"a"]).as_bytes()[0], 0x81);
}

proptest! {
    #[test]
    fn keys_are_inline_and_injective(
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
