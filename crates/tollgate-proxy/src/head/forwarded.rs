//! Headers that describe the client to the upstream.

use std::net::IpAddr;

use crate::header_names::{is_framing, is_spelling};
use bytes::Bytes;
use http::header::{self, FORWARDED, HeaderMap, HeaderName, HeaderValue, VIA};

use super::connection::{Connection, protocol};
use super::fields::append;
use super::hop;

enum Treatment {
    Keep,
    /// The gateway writes the client's address.
    Replace,
    Remove,
}

/// Writes `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded`.
///
/// The gateway appends this hop to each list. Earlier elements remain only if a trusted proxy sent
/// the request, and only in the header that it is known to write. Clients may invent all other
/// elements, and an upstream that reads from the left would trust them. A proxy forwards headers
/// that it does not write, so in these headers the gateway replaces the client's address with the
/// address that it has found. Protocol and host describe the first hop, so a trusted proxy's values
/// remain.
///
/// `host` is the host that the client requested. Trusted proxies write the client's address into
/// `proxy_header`. `client` is this address, if a trusted proxy sent the request.
pub(crate) fn write(
    headers: &mut HeaderMap,
    connection: &Connection,
    host: Option<&str>,
    proxy_header: &HeaderName,
    client: Option<IpAddr>,
) {
    let found = client.and_then(|ip| HeaderValue::try_from(ip.to_string()).ok());
    let described: Vec<_> = headers
        .keys()
        .filter(|name| is_harmful(name.as_str()) || is_about_client(name, proxy_header))
        .cloned()
        .collect();
    for name in described {
        match (treatment(&name, proxy_header, client.is_some()), &found) {
            (Treatment::Keep, _) => {}
            (Treatment::Replace, Some(found)) => drop(headers.insert(name, found.clone())),
            _ => drop(headers.remove(name)),
        }
    }
    // Reserved in one step, because each growth of the map moves all headers.
    headers.reserve(WRITTEN);
    if let Some(client) = client.filter(|client| *client != connection.peer.ip().to_canonical()) {
        let hop = match client {
            IpAddr::V4(ip) => format!("for={ip}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
        };
        let hop = HeaderValue::try_from(hop).ok();
        for (name, hop) in [(FOR, found), (FORWARDED, hop)] {
            if let (true, Some(hop)) = (name != *proxy_header, hop) {
                headers.insert(name, hop);
            }
        }
    }
    append(headers, &FOR, connection.ip.clone());
    append(headers, &FORWARDED, element(connection, host));
    let protocol = || HeaderValue::from_static(protocol(connection.is_tls));
    headers.entry(PROTO).or_insert_with(protocol);
    let named = headers.get(header::HOST).cloned();
    if let Some(host) = named.or_else(|| HeaderValue::from_str(host?).ok()) {
        headers.entry(HOST).or_insert(host);
    }
}

/// How to treat a header that describes the client.
fn treatment(name: &HeaderName, proxy_header: &HeaderName, is_behind_proxy: bool) -> Treatment {
    let text = name.as_str();
    // Many services read `_` as `-` and cannot tell the two apart. Names with `_` are removed even
    // behind a trusted proxy, because a proxy forwards headers that it does not know.
    if !is_behind_proxy || text.contains('_') || is_harmful(text) {
        return Treatment::Remove;
    }
    if name == proxy_header {
        return Treatment::Keep;
    }
    if ADDRESSES.contains(&text) {
        return Treatment::Replace;
    }
    // The trusted proxy sets the remaining headers, such as `X-Forwarded-Proto`.
    if OTHER_NAMES.contains(&text) { Treatment::Remove } else { Treatment::Keep }
}

/// Removes request trailers that describe the client or the message length. Some services merge
/// trailers into the headers and would trust them (RFC 9110 §6.5.1).
pub(crate) fn clean_trailers(trailers: &mut HeaderMap, proxy_header: &HeaderName) {
    hop::remove_framing(trailers);
    let dropped: Vec<_> = trailers
        .keys()
        .filter(|name| {
            is_about_client(name, proxy_header)
                || is_harmful(name.as_str())
                || *name == header::HOST
                || *name == VIA
        })
        .cloned()
        .collect();
    for name in dropped {
        trailers.remove(name);
    }
}

/// Whether a header describes the client or its original request. Only proxies in front of the
/// service may write such a header.
fn is_about_client(name: &HeaderName, own: &HeaderName) -> bool {
    let name = name.as_str();
    name.get(..PREFIX.len()).is_some_and(|start| is_spelling(start, PREFIX))
        || ADDRESSES.iter().chain(&OTHER_NAMES).any(|known| is_spelling(name, known))
        || is_spelling(name, own.as_str())
}

/// Whether a header is always removed. A trusted proxy that does not know the header forwards the
/// value of an untrusted client.
fn is_harmful(name: &str) -> bool {
    let is_hidden_framing = name.contains('_') && is_framing(name);
    is_hidden_framing || HARMFUL.iter().any(|known| is_spelling(name, known))
}

/// A hop as defined in RFC 7239.
fn element(connection: &Connection, host: Option<&str>) -> HeaderValue {
    // With a quote or a backslash, the client could inject its own elements.
    let Some(host) = host.filter(|host| !host.contains(['"', '\\'])) else {
        return connection.hop.clone();
    };
    let element = [connection.hop.as_bytes(), b";host=\"", host.as_bytes(), b"\""].concat();
    // An authority and the hop are valid header values, so the fallback is never used.
    HeaderValue::from_maybe_shared(Bytes::from(element)).unwrap_or_else(|_| connection.hop.clone())
}

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// The number of headers that every forwarded request receives: these three, `Forwarded` and `Via`.
const WRITTEN: usize = 5;

pub(crate) const PATH_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// The prefix of `X-Forwarded-For` and related headers, such as `-Port`, `-Prefix` and `-User`.
const PREFIX: &str = "x-forwarded-";

/// Services trust these headers as much as those that the gateway writes. Each contains the
/// client's address.
const ADDRESSES: [&str; 23] = [
    "client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "x-real-ip",
    "x-remote-ip",
    "x-remote-addr",
    "remote-addr",
    "x-originating-ip",
    "proxy-client-ip",
    "wl-proxy-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-envoy-external-address",
    "x-nf-client-connection-ip",
    "x-proxyuser-ip",
    "x-sucuri-clientip",
    "do-connecting-ip",
    "incap-client-ip",
    "ali-cdn-real-ip",
];

/// These have another format, or only an address of one IP version.
const OTHER_NAMES: [&str; 10] = [
    "forwarded",
    "forwarded-for",
    "x-forwarded",
    "x-forwarded-for",
    "x-original-forwarded-for",
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "x-azure-socketip",
    "x-vercel-forwarded-for",
    "cloudfront-viewer-address",
];

/// Some services read the path from the first three, so another path's limits would apply. CGI
/// programs see `Proxy` as the variable `HTTP_PROXY`, and send requests through that proxy. Only
/// the gateway may report that a request exceeds a soft limit.
const HARMFUL: [&str; 5] =
    ["x-original-url", "x-original-uri", "x-rewrite-url", "proxy", "x-ratelimit-exceeded"];

#[cfg(test)]
mod tests {
    use super::*;

    type Lines<'a> = &'a [(&'static str, &'static str)];

    /// A request's headers behind proxies that write `X-Forwarded-For`. With `client`, such a proxy
    /// sent the request for this client.
    fn written(
        client: Option<&str>,
        peer: &str,
        host: Option<&str>,
        lines: Lines<'_>,
    ) -> HeaderMap {
        written_by(&FOR, client, peer, host, lines)
    }

    /// The same behind proxies that write their own header.
    fn written_behind_balancer(client: Option<&str>, peer: &str, lines: Lines<'_>) -> HeaderMap {
        let header = HeaderName::from_static("x-our-balancer");
        written_by(&header, client, peer, None, lines)
    }

    fn written_by(
        proxy_header: &HeaderName,
        client: Option<&str>,
        peer: &str,
        host: Option<&str>,
        lines: Lines<'_>,
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let connection = Connection::new(peer.parse().unwrap(), true).unwrap();
        let client = client.map(|client| client.parse().unwrap());
        write(&mut headers, &connection, host, proxy_header, client);
        headers
    }

    #[test]
    fn trusted_proxy_headers_are_extended() {
        let headers = written(
            Some("192.0.2.2"),
            "127.0.0.1:9",
            Some("inner:80"),
            &[
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-for", "192.0.2.2"),
                ("forwarded", "for=192.0.2.9"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "shop.example"),
            ],
        );
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1, 192.0.2.2, 127.0.0.1");
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
        assert_eq!(
            headers["forwarded"],
            "for=192.0.2.2, for=127.0.0.1;proto=https;host=\"inner:80\""
        );
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "shop.example");
    }

    #[test]
    fn untrusted_headers_are_replaced() {
        let headers = written(
            None,
            "[2001:db8::1]:9",
            Some("shop.example"),
            &[
                ("x-forwarded-for", "127.0.0.1"),
                ("forwarded", "for=127.0.0.1;host=\"admin"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "evil.example"),
                ("x-real-ip", "127.0.0.1"),
            ],
        );
        assert_eq!(headers["x-forwarded-for"], "2001:db8::1");
        assert_eq!(headers["forwarded"], "for=\"[2001:db8::1]\";proto=https;host=\"shop.example\"");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "shop.example");
        assert!(!headers.contains_key("x-real-ip"));
    }

    #[test]
    fn untrusted_spellings_are_removed() {
        let invented = [
            ("x_forwarded_for", "127.0.0.1"),
            ("x-forwarded_for", "127.0.0.1"),
            ("x_real_ip", "127.0.0.1"),
            ("x-forwarded-user", "root"),
            ("cf-connecting-ip", "127.0.0.1"),
            ("x-forwarded", "127.0.0.1"),
            ("x_forwarded", "127.0.0.1"),
            ("client_ip", "127.0.0.1"),
            ("x-original-url", "/login"),
            ("x-rewrite-url", "/login"),
            ("x_original_uri", "/login"),
            ("proxy", "http://127.0.0.1:9"),
            ("content_length", "0"),
            ("transfer_encoding", "chunked"),
        ];
        let kept = [("x-request-id", "2"), ("x_request_id", "3"), ("proxy-status", "4")];
        let headers = written(None, "192.0.2.1:9", None, &[&invented[..], &kept].concat());
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        for (name, _) in invented {
            assert!(!names.contains(&name), "{name}");
        }
        for (name, _) in kept {
            assert!(names.contains(&name), "{name}");
        }
        let own = [("x-our-balancer", "127.0.0.1"), ("x_our_balancer", "127.0.0.1")];
        let headers = written_behind_balancer(None, "192.0.2.1:9", &own);
        assert!(own.iter().all(|(name, _)| !headers.contains_key(*name)), "{headers:?}");
        // Behind a proxy, names with `_` are from the client.
        let headers = written(Some("127.0.0.1"), "127.0.0.1:9", None, &invented);
        for (name, _) in invented {
            let is_from_proxy = ["x-forwarded-user", "cf-connecting-ip"].contains(&name);
            assert_eq!(headers.contains_key(name), is_from_proxy, "{name}");
        }
    }

    /// A proxy forwards address headers that it does not write, so a client may have written them.
    #[test]
    fn forged_addresses_are_replaced() {
        let forged = [
            ("x-real-ip", "198.51.100.66"),
            ("x-real-ip", "198.51.100.67"),
            ("cf-connecting-ip", "198.51.100.66"),
            ("true-client-ip", "198.51.100.66"),
            ("x-client-ip", "198.51.100.66"),
            ("fastly-client-ip", "198.51.100.66"),
            ("do-connecting-ip", "198.51.100.66"),
            ("cloudfront-viewer-address", "198.51.100.66:443"),
            ("x-vercel-forwarded-for", "198.51.100.66"),
            ("cf-connecting-ipv6", "2001:db8::66"),
            ("forwarded-for", "198.51.100.66"),
            ("forwarded", "for=198.51.100.66"),
            ("x-original-forwarded-for", "198.51.100.66"),
        ];
        let list = ("x-forwarded-for", "198.51.100.66, 2001:db8::7");
        let lines = [&forged[..], &[list]].concat();
        let headers = written(Some("2001:db8::7"), "127.0.0.1:9", None, &lines);
        for (name, _) in forged.iter().filter(|(name, _)| *name != "forwarded") {
            let lines: Vec<_> = headers.get_all(*name).iter().collect();
            let expected = if ADDRESSES.contains(name) { &["2001:db8::7"][..] } else { &[] };
            assert_eq!(lines, expected, "{name}");
        }
        assert_eq!(headers["forwarded"], "for=\"[2001:db8::7]\", for=127.0.0.1;proto=https");
        assert_eq!(headers["x-forwarded-for"], "198.51.100.66, 2001:db8::7, 127.0.0.1");
        // These proxies write another header, so the list is from the client.
        let own = ("x-our-balancer", "203.0.113.7");
        let headers = written_behind_balancer(
            Some("203.0.113.7"),
            "127.0.0.1:9",
            &[&lines[..], &[own]].concat(),
        );
        assert_eq!(headers["x-our-balancer"], "203.0.113.7");
        assert_eq!(headers["x-forwarded-for"], "203.0.113.7, 127.0.0.1");
        assert_eq!(headers["forwarded"], "for=203.0.113.7, for=127.0.0.1;proto=https");
        assert_eq!(headers["x-real-ip"], "203.0.113.7");
        // Without the proxy's header, only its own address is certain.
        let headers = written_behind_balancer(Some("127.0.0.1"), "127.0.0.1:9", &lines);
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert_eq!(headers["forwarded"], "for=127.0.0.1;proto=https");
        assert_eq!(headers["x-real-ip"], "127.0.0.1");
    }

    #[test]
    fn unmaps_addresses_and_drops_quoted_hosts() {
        let headers = written(None, "[::ffff:192.0.2.9]:9", Some("a\"b"), &[]);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.9");
        assert_eq!(headers["forwarded"], "for=192.0.2.9;proto=https");
    }
}
