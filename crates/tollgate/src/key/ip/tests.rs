use std::net::SocketAddr;

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;

const PROXIES: [&str; 4] = ["loopback", "10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.66"];

/// A request from `peer` with these header lines, of any bytes that HTTP lets through.
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
    source.address(&Head::of(request)).unwrap().unwrap().to_string()
}

fn key(source: &ClientIp, request: &Request<()>) -> Key {
    source.subject(&Head::of(request)).unwrap().unwrap().key
}

fn behind() -> ClientIp {
    ClientIp::behind(TrustedProxies::parse(PROXIES).unwrap())
}

/// The client that 10.0.0.1 reports in these lines of `X-Forwarded-For`.
fn forwarded_for(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
    address(&behind(), &request("10.0.0.1", &lines))
}

/// The client that 10.0.0.1 reports in these lines of `Forwarded`.
fn forwarded(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("forwarded", line.as_bytes())).collect();
    address(&behind().in_forwarded(), &request("10.0.0.1", &lines))
}

fn by_peer(source: &ClientIp, peer: &str) -> Key {
    key(source, &request(peer, &[]))
}

#[test]
fn a_header_from_an_untrusted_peer_is_ignored() {
    let header: &[(&str, &[u8])] = &[
        ("x-forwarded-for", b"203.0.113.9"),
        ("forwarded", b"for=203.0.113.9"),
        ("x-real-ip", b"203.0.113.9"),
    ];
    let request = request("198.51.100.1", header);
    let single = HeaderName::from_static("x-real-ip");
    for source in
        [ClientIp::peer(), behind(), behind().in_forwarded(), behind().in_single_header(single)]
    {
        assert_eq!(address(&source, &request), "198.51.100.1");
    }
}

#[test]
fn the_client_is_the_first_from_the_right_that_is_no_proxy() {
    for (lines, client) in [
        (&["203.0.113.9"][..], "203.0.113.9"),
        (&["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        (&["203.0.113.9,192.0.2.66 ,\t10.0.0.2"], "203.0.113.9"),
        // All internal: the leftmost.
        (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        // No header, or an empty one: the peer.
        (&[], "10.0.0.1"),
        (&[""], "10.0.0.1"),
        // Ports, and IPv6 in its forms.
        (&["203.0.113.9:443"], "203.0.113.9"),
        (&["2001:db8::1"], "2001:db8::1"),
        (&["[2001:db8::1]"], "2001:db8::1"),
        (&["[2001:db8::1]:443"], "2001:db8::1"),
        // Ambiguous, so an address and nothing else.
        (&["2001:db8::1:443"], "2001:db8::1:443"),
        // IPv6 proxies are walked past as well.
        (&["203.0.113.9, 2001:DB8:FF:0::7"], "203.0.113.9"),
        // Mapped addresses are IPv4 before the proxies are compared.
        (&["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
        (&["::ffff:203.0.113.9"], "203.0.113.9"),
    ] {
        assert_eq!(forwarded_for(lines), client, "{lines:?}");
    }
}

#[test]
fn the_leftmost_address_is_never_believed_over_one_further_right() {
    assert_eq!(forwarded_for(&["1.1.1.1, 203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["1.1.1.1, 203.0.113.9, 10.0.0.2"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["10.0.0.9, 203.0.113.9"]), "203.0.113.9");
}

#[test]
fn several_lines_are_one_list() {
    assert_eq!(forwarded_for(&["1.1.1.1", "203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["1.1.1.1, 2.2.2.2", "203.0.113.9", "10.0.0.2"]), "203.0.113.9");
    assert_eq!(forwarded(&["for=1.1.1.1", "for=203.0.113.9", "for=10.0.0.2"]), "203.0.113.9");
}

#[test]
fn garbage_ends_the_walk_at_the_last_proxy() {
    for garbage in [
        "unknown",
        "_hidden",
        "",
        " ",
        "1.2.3",
        "1.2.3.4.5",
        "010.1.1.1",
        "0x7f.0.0.1",
        "1.2.3.4:",
        "1.2.3.4:+80",
        "1.2.3.4:99999",
        "1.2.3.4 5.6.7.8",
        "fe80::1%eth0",
        "[fe80::1%eth0]",
        "[2001:db8::1",
        "[2001:db8::1]443",
        "[2001:db8::1]:",
        "[1.2.3.4]",
        "2001:db8::1]",
        "\"1.2.3.4\"",
        "localhost",
    ] {
        let line = format!("203.0.113.9, {garbage}, 10.0.0.2");
        assert_eq!(forwarded_for(&[&line]), "10.0.0.2", "{garbage:?}");
        let line = format!("203.0.113.9, {garbage}");
        assert_eq!(forwarded_for(&[&line]), "10.0.0.1", "{garbage:?}");
    }
    let bytes: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9, \xff\xfe")];
    assert_eq!(address(&behind(), &request("10.0.0.1", bytes)), "10.0.0.1");
}

#[test]
fn forwarded_is_read_as_rfc_7239_writes_it() {
    for (line, client) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=203.0.113.9;proto=https", "203.0.113.9"),
        ("by=10.0.0.1;FOR=203.0.113.9", "203.0.113.9"),
        ("for=\"203.0.113.9:80\"", "203.0.113.9"),
        ("for=203.0.113.9:80", "203.0.113.9"),
        ("for=\"[2001:db8::1]\"", "2001:db8::1"),
        ("for=\"[2001:db8::1]:443\" ; proto=https;", "2001:db8::1"),
        ("for=203.0.113.9;;proto=https", "203.0.113.9"),
        ("for=203.0.113.9, for=10.0.0.2", "203.0.113.9"),
        // What a proxy copies from the client into quotes stays in them.
        (r#"for=203.0.113.9;host="a, for=1.1.1.1""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="a\", for=1.1.1.1;x=\"""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="a\\""#, "203.0.113.9"),
        (r#"host=";for=1.1.1.1";for=203.0.113.9"#, "203.0.113.9"),
        // Quotes that the client left open do not swallow what the proxy wrote.
        (r#"for=", for=203.0.113.9"#, "203.0.113.9"),
        (r#"for="1.1.1.1, for="203.0.113.9""#, "203.0.113.9"),
        (r#"for="\, for=203.0.113.9"#, "203.0.113.9"),
    ] {
        assert_eq!(forwarded(&[line]), client, "{line}");
    }
}

#[test]
fn garbage_in_forwarded_ends_the_walk_at_the_last_proxy() {
    for garbage in [
        "",
        "for",
        "for=",
        "for=unknown",
        "for=_hidden",
        "for=\"_hidden:80\"",
        "proto=https",
        "203.0.113.9",
        "for=203.0.113.9;for=203.0.113.8",
        "for=\"203.0.113.9",
        "for=203.0.113.9\"",
        "for=\"203.0.113.9\"x",
        "for=\"203\\.0.113.9\"",
        "for=203.0.113.9;x",
        "x;for=203.0.113.9",
        "\"for\"=203.0.113.9",
        "for =203.0.113.9",
        "for=\\\"203.0.113.9",
    ] {
        let line = format!("for=203.0.113.7, {garbage}, for=10.0.0.2");
        assert_eq!(forwarded(&[&line]), "10.0.0.2", "{garbage:?}");
    }
}

#[test]
fn only_the_chosen_header_is_read() {
    let lines: &[(&str, &[u8])] = &[
        ("forwarded", b"for=1.1.1.1"),
        ("x-forwarded-for", b"203.0.113.9"),
        ("x-real-ip", b"2.2.2.2"),
    ];
    let request = request("10.0.0.1", lines);
    assert_eq!(address(&behind(), &request), "203.0.113.9");
    assert_eq!(address(&behind().in_forwarded(), &request), "1.1.1.1");
    let single = HeaderName::from_static("x-real-ip");
    assert_eq!(address(&behind().in_single_header(single), &request), "2.2.2.2");
}

#[test]
fn a_single_header_holds_one_address_or_garbage() {
    let source = behind().in_single_header(HeaderName::from_static("cf-connecting-ip"));
    for (values, client) in [
        (&["203.0.113.9"][..], "203.0.113.9"),
        (&["2001:db8::1"], "2001:db8::1"),
        // It need not be untrusted: a proxy may be a client too.
        (&["10.7.7.7"], "10.7.7.7"),
        (&["203.0.113.9", "203.0.113.9"], "10.0.0.1"),
        (&["1.1.1.1, 203.0.113.9"], "10.0.0.1"),
        (&["unknown"], "10.0.0.1"),
        (&[], "10.0.0.1"),
    ] {
        let lines: Vec<_> = values.iter().map(|v| ("cf-connecting-ip", v.as_bytes())).collect();
        assert_eq!(address(&source, &request("10.0.0.1", &lines)), client, "{values:?}");
    }
}

#[test]
fn hops_past_the_thirty_second_are_not_read() {
    let proxies = |count| vec!["10.0.0.2"; count].join(", ");
    let line = format!("203.0.113.9, {}", proxies(31));
    assert_eq!(forwarded_for(&[&line]), "203.0.113.9");
    let line = format!("203.0.113.9, 10.0.0.3, {}", proxies(31));
    assert_eq!(forwarded_for(&[&line]), "10.0.0.3");
    let lines = vec!["10.0.0.2"; 32];
    assert_eq!(forwarded_for(&[&["203.0.113.9"][..], &lines].concat()), "10.0.0.2");
}

#[test]
fn bytes_past_four_kilobytes_are_not_read() {
    let blank = |count| " ".repeat(count);
    // Behind the limit nothing changes, however long it is.
    let line = format!("{}, 203.0.113.9", "x".repeat(100_000));
    assert_eq!(forwarded_for(&[&line]), "203.0.113.9");
    let line = format!("{}, for=203.0.113.9", "\"".repeat(100_000));
    assert_eq!(forwarded(&[&line]), "203.0.113.9");
    // An element that begins there is not read, in one line or in several.
    let near = format!("203.0.113.9,{}10.0.0.2", blank(4_000));
    assert_eq!(forwarded_for(&[&near]), "203.0.113.9");
    let far = format!("203.0.113.9,{}10.0.0.2", blank(4_100));
    assert_eq!(forwarded_for(&[&far]), "10.0.0.1");
    let long = format!("for=203.0.113.9;host=\"{}\"", "x".repeat(4_100));
    assert_eq!(forwarded(&[&long]), "10.0.0.1");
    let half = format!("{}10.0.0.2", blank(2_100));
    assert_eq!(forwarded_for(&["203.0.113.9", &half, &half]), "10.0.0.2");
}

#[test]
fn ipv4_mapped_clients_do_not_share_a_bucket() {
    let source = ClientIp::peer();
    let mapped = by_peer(&source, "::ffff:203.0.113.9");
    assert_eq!(mapped, by_peer(&source, "203.0.113.9"));
    assert_ne!(mapped, by_peer(&source, "::ffff:203.0.113.8"));
    let wide = ClientIp::peer().v6_prefix(56).unwrap();
    assert_ne!(by_peer(&wide, "::ffff:203.0.113.9"), by_peer(&wide, "::ffff:198.51.100.1"));
    // And a mapped peer is the proxy that it is.
    let lines: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9")];
    assert_eq!(address(&behind(), &request("::ffff:10.0.0.1", lines)), "203.0.113.9");
}

#[test]
fn a_host_cannot_walk_through_its_own_ipv6_network() {
    let source = ClientIp::peer();
    let key = |ip| by_peer(&source, ip);
    assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    assert_eq!(key("2001:db8:1:2::1").as_bytes().len(), 9);
}

#[test]
fn prefixes_can_be_set_within_bounds() {
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
fn clients_behind_nat64_count_by_their_ipv4_address() {
    let key = |ip| by_peer(&ClientIp::peer(), ip);
    assert_eq!(key("64:ff9b::203.0.113.9"), key("203.0.113.9"));
    assert_ne!(key("64:ff9b::203.0.113.9"), key("64:ff9b::203.0.113.8"));
    let off = ClientIp::peer().nat64(false);
    assert_eq!(by_peer(&off, "64:ff9b::203.0.113.9"), by_peer(&off, "64:ff9b::203.0.113.8"));
    // Only the key: an embedded address makes nobody a proxy.
    let lines: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9")];
    let request = request("64:ff9b::10.0.0.1", lines);
    assert_eq!(address(&behind(), &request), "64:ff9b::a00:1");
}

#[test]
fn nothing_is_trusted_that_is_not_written_down() {
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
fn a_wrong_proxy_is_named_with_its_cure() {
    for (entry, cure) in [
        ("10.0.0.0/33", "10.0.0.0/8"),
        ("nginx", "`loopback`"),
        ("", "`private`"),
        (" 10.0.0.0/8", "expected a network"),
        ("Private", "`private`"),
        ("10.0.0.1/8", "10.0.0.0/8 for the network or 10.0.0.1 for the one"),
        ("0.0.0.0/0", "trusts everybody"),
        ("::/0", "trusts everybody"),
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
fn a_unix_socket_has_no_address_until_it_is_said_what_it_means() {
    let mut request = Request::new(());
    request.extensions_mut().insert(UnixPeer);
    let found = |source: &ClientIp, request: &Request<()>| {
        let address = source.address(&Head::of(request));
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

    let garbage = HeaderValue::from_static("203.0.113.9, unknown");
    request.headers_mut().insert("x-forwarded-for", garbage);
    assert_eq!(found(&trusting, &request).unwrap(), None);
}

#[test]
fn a_closure_can_know_the_peer() {
    let source = ClientIp::from_fn(|head| {
        let peer = head.headers.get("x-test-peer")?;
        peer.to_str().ok()?.parse().ok()
    })
    .trusting(TrustedProxies::parse(PROXIES).unwrap());
    let mut request = Request::new(());
    assert_eq!(source.address(&Head::of(&request)).unwrap(), None);
    let peer = HeaderValue::from_static("::ffff:10.0.0.1");
    request.headers_mut().insert("x-test-peer", peer);
    assert_eq!(address(&source, &request), "10.0.0.1");
    let line = HeaderValue::from_static("203.0.113.9");
    request.headers_mut().insert("x-forwarded-for", line);
    assert_eq!(address(&source, &request), "203.0.113.9");
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_knows_the_peer() {
    use tonic::transport::server::TcpConnectInfo;

    let tcp = |remote_addr: Option<SocketAddr>| TcpConnectInfo { local_addr: None, remote_addr };
    let mut request = Request::new(());
    let peer = "203.0.113.9:1".parse().unwrap();
    request.extensions_mut().insert(tcp(Some(peer)));
    assert_eq!(address(&ClientIp::peer(), &request), "203.0.113.9");
    request.extensions_mut().insert(tcp(None));
    let unknown = ClientIp::peer().address(&Head::of(&request));
    assert!(matches!(unknown, Err(KeyError::NoPeerAddress)));
}

#[cfg(all(feature = "tonic", unix))]
#[test]
fn tonic_knows_a_unix_socket() {
    use tonic::transport::server::UdsConnectInfo;

    let mut request = Request::new(());
    request.extensions_mut().insert(UdsConnectInfo { peer_addr: None, peer_cred: None });
    let refused = ClientIp::peer().address(&Head::of(&request));
    assert!(matches!(refused, Err(KeyError::UnixPeer)));
}

/// Bytes that look like what the parsers look for, more often than chance would.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[0-9a-fA-F:.\\[\\]]{0,20}".prop_map(String::into_bytes),
        prop::sample::select(vec![
            "for=",
            "For=\"",
            "\"",
            "\\",
            "\\\"",
            ",",
            ", ",
            ";",
            "=",
            " ",
            "\t",
            "_x",
            "unknown",
            "10.0.0.2",
            "203.0.113.7",
            "[2001:db8::1]:80",
            "2001:db8:ff::1",
            "::ffff:10.0.0.1",
            "host=\"",
            "%eth0",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    // HTTP lets no control characters through; without this most lines would be dropped.
    let legal = |byte: u8| if byte.is_ascii_control() { b',' } else { byte };
    prop::collection::vec(piece, 0..40)
        .prop_map(move |pieces| pieces.concat().into_iter().map(legal).collect())
}

fn untrusted() -> impl Strategy<Value = IpAddr> {
    let proxies = TrustedProxies::parse(PROXIES).unwrap();
    any::<IpAddr>().prop_filter("no proxy", move |ip| !proxies.contains(*ip))
}

proptest! {
    #[test]
    fn no_bytes_make_the_parsers_panic(
        lines in prop::collection::vec(line(), 0..4),
        from in prop::sample::select(vec!["10.0.0.1", "::ffff:10.0.0.1", "203.0.113.1"]),
    ) {
        for (name, source) in [
            ("x-forwarded-for", behind()),
            ("forwarded", behind().in_forwarded()),
            ("x-real-ip", behind().in_single_header(HeaderName::from_static("x-real-ip"))),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| (name, line.as_slice())).collect();
            prop_assert_eq!(key(&source, &request(from, &lines)).heap_bytes(), 0);
        }
    }

    #[test]
    fn a_client_cannot_change_its_key_by_what_it_sends(
        client in untrusted(),
        sent in prop::collection::vec(line(), 0..4),
        inner_proxy: bool,
        own_line: bool,
    ) {
        let quoted = match client {
            IpAddr::V4(ip) => format!("for={ip}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
        };
        for (name, source, added, inner) in [
            ("x-forwarded-for", behind(), client.to_string(), ", 10.0.0.2"),
            ("forwarded", behind().in_forwarded(), quoted, ", for=10.0.0.2;host=\"a,b\""),
        ] {
            // What the proxies do: append to the last line, as HAProxy and nginx do, or
            // add a line of their own, and pass on all others.
            let mut added = added.into_bytes();
            if inner_proxy {
                added.extend_from_slice(inner.as_bytes());
            }
            let mut lines = sent.clone();
            match lines.last_mut() {
                Some(last) if !own_line => {
                    last.extend_from_slice(b", ");
                    last.extend_from_slice(&added);
                }
                _ => lines.push(added),
            }
            let lines: Vec<_> = lines.iter().map(|line| (name, line.as_slice())).collect();
            let honest = request(&client.to_string(), &[]);
            prop_assert_eq!(key(&source, &request("10.0.0.1", &lines)), key(&source, &honest));
        }
    }

    #[test]
    fn equal_addresses_in_different_spellings_have_one_key(ip in untrusted(), port: u16) {
        let mut spellings = vec![ip.to_string(), format!(" {ip}\t")];
        match ip {
            IpAddr::V4(v4) => {
                let mapped = v4.to_ipv6_mapped();
                let [.., a, b] = mapped.segments();
                spellings.push(format!("{v4}:{port}"));
                spellings.push(mapped.to_string());
                spellings.push(format!("[{mapped}]:{port}"));
                spellings.push(format!("0:0:0:0:0:FFFF:{a:X}:{b:x}"));
            }
            IpAddr::V6(v6) => {
                let groups = v6.segments();
                let full: Vec<_> = groups.iter().map(|group| format!("{group:04X}")).collect();
                let short: Vec<_> = groups.iter().map(|group| format!("{group:x}")).collect();
                spellings.push(format!("[{v6}]:{port}"));
                spellings.push(full.join(":"));
                spellings.push(short.join(":"));
                spellings.push(format!("[{}]", full.join(":")));
            }
        }
        let expected = by_peer(&behind(), &ip.to_string());
        for text in spellings {
            let line = [("x-forwarded-for", text.as_bytes())];
            prop_assert_eq!(&key(&behind(), &request("10.0.0.1", &line)), &expected, "{}", text);
        }
    }
}
