//! Properties that hold for all headers that a client can send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderName;
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::{PROXIES, behind, by_peer, key, request};
use crate::key::encode::{Tag, plain};
use crate::key::{ClientIp, TrustedProxies};

/// Bytes that contain the parsers' delimiters more often than random bytes would.
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
    // HTTP does not allow control characters. Without this mapping, most lines would be discarded.
    let legal = |byte: u8| if byte.is_ascii_control() { b',' } else { byte };
    prop::collection::vec(piece, 0..40)
        .prop_map(move |pieces| pieces.concat().into_iter().map(legal).collect())
}

fn untrusted() -> impl Strategy<Value = IpAddr> {
    let proxies = TrustedProxies::parse(PROXIES).unwrap();
    any::<IpAddr>().prop_filter("no proxy", move |ip| !proxies.contains(*ip))
}

/// Addresses near the special prefixes more often than random addresses would be.
fn near_prefixes() -> impl Strategy<Value = IpAddr> {
    let heads = prop::sample::select(vec![
        [0, 0, 0, 0, 0, 0xffff],
        [0, 0, 0, 0, 0, 0xfffe],
        [0, 0, 0, 0, 1, 0xffff],
        [0x64, 0xff9b, 0, 0, 0, 0],
        [0x64, 0xff9b, 1, 0, 0, 0],
        [0x64, 0xff9a, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]);
    let headed = (heads, any::<[u16; 2]>()).prop_map(|([a, b, c, d, e, f], [g, h])| {
        IpAddr::from(Ipv6Addr::new(a, b, c, d, e, f, g, h))
    });
    prop_oneof![3 => headed, 1 => any::<IpAddr>()]
}

/// The IPv4 address that a NAT64 translator embedded in this address.
fn translated(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let nat64: Ipv6Net = "64:ff9b::/96".parse().unwrap();
    let [.., a, b, c, d] = ip.octets();
    nat64.contains(&ip).then_some(Ipv4Addr::new(a, b, c, d))
}

proptest! {
    #[test]
    fn key_is_masked_address(
        ip in near_prefixes(),
        v4_bits in 1..=32_u8,
        v6_bits in 1..=128_u8,
        nat64: bool,
    ) {
        let source = ClientIp::peer().nat64(nat64);
        let source = source.v4_prefix(v4_bits).unwrap().v6_prefix(v6_bits).unwrap();
        let embedded = match ip.to_canonical() {
            IpAddr::V6(v6) if nat64 => translated(v6).map_or_else(|| v6.into(), IpAddr::from),
            canonical => canonical,
        };
        let expected = match embedded {
            IpAddr::V4(v4) => {
                let network = Ipv4Net::new(v4, v4_bits).unwrap().network();
                plain(Tag::Ipv4, &network.octets())
            }
            IpAddr::V6(v6) => {
                let network = Ipv6Net::new(v6, v6_bits).unwrap().network();
                plain(Tag::Ipv6, &network.octets()[..usize::from(v6_bits.div_ceil(8))])
            }
        };
        prop_assert_eq!(by_peer(&source, &ip.to_string()), expected);
    }

    #[test]
    fn arbitrary_headers_never_panic(
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
    fn sent_headers_cannot_change_key(
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
            // A proxy either appends to the last line, like HAProxy and nginx, or adds a line. It
            // forwards all other lines.
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
    fn address_spellings_share_one_key(ip in untrusted(), port: u16) {
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
