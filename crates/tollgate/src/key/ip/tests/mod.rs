//! Test helpers: requests from a peer, with arbitrary header bytes.

mod forwarding;
mod keys;
mod peers;
mod properties;

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use tollgate_core::Key;

use crate::head::RequestHead;
use crate::key::{ClientIp, KeySource};

const PROXIES: [&str; 4] = ["loopback", "10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.66"];

/// A request from `peer` with these header lines, which may contain any bytes that HTTP allows.
fn request(peer: &str, lines: &[(&str, &[u8])]) -> Request<()> {
    let mut request = Request::new(());
    let peer: IpAddr = peer.parse().unwrap();
    request.extensions_mut().insert(SocketAddr::from((peer, 4711)));
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append(name, value);
    }
    request
}

fn address(source: &ClientIp, request: &Request<()>) -> String {
    source.address(&RequestHead::of(request)).unwrap().unwrap().to_string()
}

fn key(source: &ClientIp, request: &Request<()>) -> Key {
    source.subject(&RequestHead::of(request)).unwrap().unwrap().key
}

fn behind() -> ClientIp {
    ClientIp::behind(PROXIES).unwrap()
}

fn by_peer(source: &ClientIp, peer: &str) -> Key {
    key(source, &request(peer, &[]))
}
