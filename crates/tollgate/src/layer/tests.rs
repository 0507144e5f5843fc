//! Tests properties that are invisible from outside.

use std::collections::HashSet;

use http::{HeaderValue, Request};
use tollgate_core::{Key, Timestamp};

use crate::RequestHead;
use crate::drive::next_id;
use crate::headers::seed_of;

#[test]
fn jitter_seed_is_stable_across_versions() {
    // Published test vectors for FNV-1a.
    for (key, expected) in [
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("foobar", 0x8594_4171_f739_67e8),
    ] {
        assert_eq!(seed_of([Key::from(key)].iter()), expected, "{key:?}");
    }
}

#[test]
fn jitter_seed_differs_between_clients() {
    let seed = |client: &str| seed_of([Key::GLOBAL, Key::from(client)].iter());
    assert_ne!(seed("a"), seed("b"));
}

#[test]
fn receipt_ids_are_unique_across_threads() {
    let names = || (0..1_000).map(|_| next_id(Timestamp::EPOCH)).collect::<Vec<_>>();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(names)).collect();
    let all: HashSet<_> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).chain(names()).collect();
    assert_eq!(all.len(), 5_000);
}

#[test]
fn preflight_needs_method_and_headers() {
    for (method, headers, expected) in [
        ("OPTIONS", &["origin", "access-control-request-method"][..], true),
        ("OPTIONS", &["origin"], false),
        ("OPTIONS", &["access-control-request-method"], false),
        ("OPTIONS", &["origin", "access-control-request-headers"], false),
        ("POST", &["origin", "access-control-request-method"], false),
    ] {
        let mut request = Request::builder().method(method).body(()).unwrap();
        for name in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static("x"));
        }
        assert_eq!(RequestHead::of(&request).is_preflight(), expected, "{method} {headers:?}");
    }
}
