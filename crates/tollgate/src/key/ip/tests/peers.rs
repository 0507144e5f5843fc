//! Tests peer addresses and trusted proxies.

use http::{HeaderValue, Request};

use super::{PROXIES, address, behind};
use crate::head::RequestHead;
use crate::key::{ClientIp, KeyError, TrustedProxies, UnixPeer};

#[test]
fn only_listed_networks_are_trusted() {
    let none = TrustedProxies::none();
    let private = TrustedProxies::parse(["private"]).unwrap();
    let loopback = TrustedProxies::parse(["loopback"]).unwrap();
    for (ip, in_private, in_loopback) in [
        ("127.0.0.1", false, true),
        ("127.9.9.9", false, true),
        ("::1", false, true),
        ("::ffff:127.0.0.1", false, true),
        ("10.1.2.3", true, false),
        ("172.31.0.1", true, false),
        ("172.32.0.1", false, false),
        ("192.168.3.4", true, false),
        ("fd00::1", true, false),
        ("169.254.0.1", false, false),
        ("100.64.0.1", false, false),
        ("fe80::1", false, false),
    ] {
        let ip = ip.parse().unwrap();
        assert!(!none.contains(ip), "{ip}");
        assert_eq!(private.contains(ip), in_private, "{ip}");
        assert_eq!(loopback.contains(ip), in_loopback, "{ip}");
    }
}

#[test]
fn proxy_errors_suggest_fix() {
    for (entry, cure) in [
        ("10.0.0.0/33", "10.0.0.0/8"),
        ("nginx", "`loopback`"),
        ("", "`private`"),
        (" 10.0.0.0/8", "expected a network"),
        ("Private", "`private`"),
        ("10.0.0.1/8", "10.0.0.0/8 for the network or 10.0.0.1 for the one"),
        ("0.0.0.0/0", "trusts every client"),
        ("::/0", "trusts every client"),
        ("::/64", "write the IPv4 network"),
    ] {
        let error = TrustedProxies::parse(["loopback", entry]).unwrap_err().to_string();
        assert!(error.contains(cure), "{error}");
        assert!(error.contains(&format!("{entry:?}")), "{error}");
    }
    let mapped = TrustedProxies::parse(["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"]).unwrap();
    assert!(mapped.contains("10.9.9.9".parse().unwrap()));
    assert!(mapped.contains("192.0.2.1".parse().unwrap()));
    assert!(!mapped.contains("192.0.2.2".parse().unwrap()));
}

#[test]
fn unix_peer_needs_explicit_handling() {
    let mut request = Request::new(());
    request.extensions_mut().insert(UnixPeer);
    let found = |source: &ClientIp, request: &Request<()>| {
        let address = source.address(&RequestHead::of(request));
        address.map(|ip| ip.map(|ip| ip.to_string()))
    };
    let trusting = behind().trust_unix_peer();
    assert!(matches!(found(&behind(), &request), Err(KeyError::UnixPeer)));
    assert_eq!(found(&behind().skip_unix_peer(), &request).unwrap(), None);
    assert_eq!(found(&trusting, &request).unwrap(), None);

    let line = HeaderValue::from_static("1.1.1.1, 203.0.113.9, 10.0.0.2");
    request.headers_mut().insert("x-forwarded-for", line);
    assert!(matches!(found(&behind(), &request), Err(KeyError::UnixPeer)));
    assert_eq!(found(&behind().skip_unix_peer(), &request).unwrap(), None);
    assert_eq!(found(&trusting, &request).unwrap().unwrap(), "203.0.113.9");

    // With no other trusted proxy, the last address in the line counts.
    assert_eq!(found(&ClientIp::peer().trust_unix_peer(), &request).unwrap().unwrap(), "10.0.0.2");

    let garbage = HeaderValue::from_static("203.0.113.9, unknown");
    request.headers_mut().insert("x-forwarded-for", garbage);
    assert_eq!(found(&trusting, &request).unwrap(), None);
}

#[test]
fn closure_can_provide_peer() {
    let source = ClientIp::from_fn(|head| {
        let peer = head.headers.get("x-test-peer")?;
        peer.to_str().ok()?.parse().ok()
    })
    .trusting(TrustedProxies::parse(PROXIES).unwrap());
    let mut request = Request::new(());
    assert_eq!(source.address(&RequestHead::of(&request)).unwrap(), None);
    let peer = HeaderValue::from_static("::ffff:10.0.0.1");
    request.headers_mut().insert("x-test-peer", peer);
    assert_eq!(address(&source, &request), "10.0.0.1");
    let line = HeaderValue::from_static("203.0.113.9");
    request.headers_mut().insert("x-forwarded-for", line);
    assert_eq!(address(&source, &request), "203.0.113.9");
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_connect_info_is_peer() {
    use std::net::SocketAddr;

    use tonic::transport::server::TcpConnectInfo;

    let tcp = |remote_addr: Option<SocketAddr>| TcpConnectInfo { local_addr: None, remote_addr };
    let mut request = Request::new(());
    let peer = "203.0.113.9:1".parse().unwrap();
    request.extensions_mut().insert(tcp(Some(peer)));
    assert_eq!(address(&ClientIp::peer(), &request), "203.0.113.9");
    request.extensions_mut().insert(tcp(None));
    let unknown = ClientIp::peer().address(&RequestHead::of(&request));
    assert!(matches!(unknown, Err(KeyError::NoPeerAddress)));
}

#[cfg(all(feature = "tonic", unix))]
#[test]
fn tonic_detects_unix_peer() {
    use tonic::transport::server::UdsConnectInfo;

    let mut request = Request::new(());
    request.extensions_mut().insert(UdsConnectInfo { peer_addr: None, peer_cred: None });
    let refused = ClientIp::peer().address(&RequestHead::of(&request));
    assert!(matches!(refused, Err(KeyError::UnixPeer)));
}
