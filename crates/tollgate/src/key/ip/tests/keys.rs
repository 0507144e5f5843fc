//! Tests which addresses share a key.

use super::{address, behind, by_peer, request};
use crate::head::RequestHead;
use crate::key::{ClientIp, KeySource};

#[test]
fn ipv4_mapped_clients_have_separate_keys() {
    let source = ClientIp::peer();
    let mapped = by_peer(&source, "::ffff:203.0.113.9");
    assert_eq!(mapped, by_peer(&source, "203.0.113.9"));
    assert_ne!(mapped, by_peer(&source, "::ffff:203.0.113.8"));
    let wide = ClientIp::peer().v6_prefix(56).unwrap();
    assert_ne!(by_peer(&wide, "::ffff:203.0.113.9"), by_peer(&wide, "::ffff:198.51.100.1"));
    // A mapped peer can be a trusted proxy, too.
    let lines: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9")];
    assert_eq!(address(&behind(), &request("::ffff:10.0.0.1", lines)), "203.0.113.9");
}

#[test]
fn ipv6_clients_share_key_per_64() {
    let source = ClientIp::peer();
    let key = |ip| by_peer(&source, ip);
    assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    assert_eq!(key("2001:db8:1:2::1").as_bytes().len(), 9);
}

#[test]
fn prefix_lengths_are_configurable() {
    let key = |source: &ClientIp, ip| by_peer(source, ip);
    let wide = ClientIp::peer().v6_prefix(57).unwrap().v4_prefix(24).unwrap();
    assert_eq!(key(&wide, "2001:db8:1:2::1"), key(&wide, "2001:db8:1:7f::1"));
    assert_ne!(key(&wide, "2001:db8:1:2::1"), key(&wide, "2001:db8:1:80::1"));
    assert_eq!(key(&wide, "203.0.113.9"), key(&wide, "203.0.113.255"));
    assert_ne!(key(&wide, "203.0.113.9"), key(&wide, "203.0.112.9"));

    let whole = ClientIp::peer().v6_prefix(128).unwrap();
    assert_ne!(key(&whole, "2001:db8::1"), key(&whole, "2001:db8::2"));
    assert_eq!(key(&whole, "2001:db8::1").heap_bytes(), 0);

    let one = ClientIp::peer().v6_prefix(1).unwrap().v4_prefix(1).unwrap();
    assert_eq!(key(&one, "2001:db8::1"), key(&one, "7fff::"));
    assert_eq!(key(&one, "1.2.3.4"), key(&one, "127.0.0.1"));

    for error in [
        ClientIp::peer().v6_prefix(0).unwrap_err(),
        ClientIp::peer().v6_prefix(129).unwrap_err(),
        ClientIp::peer().v4_prefix(0).unwrap_err(),
        ClientIp::peer().v4_prefix(33).unwrap_err(),
    ] {
        assert!(error.to_string().contains("expected 1 to"), "{error}");
    }
}

#[test]
fn only_v6_ignores_ipv4() {
    let network = ClientIp::peer().only_v6().v6_prefix(48).unwrap();
    assert!(network.can_be_missing());
    let key = |ip| network.subject(&RequestHead::of(&request(ip, &[]))).unwrap();
    assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:ffff::1"));
    assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:2:2::1"));
    assert_eq!(key("2001:db8:1:2::1").unwrap().key.as_bytes().len(), 7);
    for v4 in ["203.0.113.9", "::ffff:203.0.113.9", "64:ff9b::203.0.113.9"] {
        assert_eq!(key(v4), None, "{v4}");
    }
}

#[test]
fn nat64_clients_use_ipv4_key() {
    let key = |ip| by_peer(&ClientIp::peer(), ip);
    assert_eq!(key("64:ff9b::203.0.113.9"), key("203.0.113.9"));
    assert_ne!(key("64:ff9b::203.0.113.9"), key("64:ff9b::203.0.113.8"));
    let off = ClientIp::peer().nat64(false);
    assert_eq!(by_peer(&off, "64:ff9b::203.0.113.9"), by_peer(&off, "64:ff9b::203.0.113.8"));
    // NAT64 affects only the key: an embedded address is not compared with the proxies.
    let lines: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9")];
    let request = request("64:ff9b::10.0.0.1", lines);
    assert_eq!(address(&behind(), &request), "64:ff9b::a00:1");
}
