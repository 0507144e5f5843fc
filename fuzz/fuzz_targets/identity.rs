//! An untrusted peer cannot choose its address, and every header value gets an answer.
//!
//! The first byte selects the header and the peer. The rest is the value, one per line.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use tollgate::key::{ClientIp, KeySource, RequestHead, TrustedProxies};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let Ok(proxies) = TrustedProxies::parse(["10.0.0.0/8", "2001:db8::/32"]) else { return };
    let source = ClientIp::peer().trusting(proxies.clone());
    let (source, name) = match kind % 3 {
        0 => (source, "x-forwarded-for"),
        1 => (source.in_forwarded(), "forwarded"),
        _ => (source.in_single_header(HeaderName::from_static("x-real-ip")), "x-real-ip"),
    };
    let is_trusted = kind & 0x80 == 0;
    let peer = if is_trusted { Ipv4Addr::new(10, 0, 0, 1) } else { Ipv4Addr::new(192, 0, 2, 1) };
    let mut request = Request::new(());
    for line in rest.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        request.headers_mut().append(name, value);
    }
    request.extensions_mut().insert(SocketAddr::from((peer, 1)));
    let head = RequestHead::of(&request);
    let Ok(found) = source.address(&head) else { panic!("there is a peer") };
    assert!(source.subject(&head).is_ok_and(|subject| subject.is_some()));
    let peer = IpAddr::from(peer);
    if !is_trusted {
        assert_eq!(found, Some(peer));
    }
});
