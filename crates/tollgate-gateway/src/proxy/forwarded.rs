//! What the upstream is told about the client it cannot see.

use std::sync::Arc;

use bytes::Bytes;
use http::Version;
use http::header::{self, FORWARDED, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue, VIA};
use tollgate::key;

use super::{Connection, hop};

/// The proxies in front of us.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    /// Who they are.
    pub proxies: key::TrustedProxies,
    /// The header of their own in which they name the client, if any.
    pub header: Option<HeaderName>,
}

/// Writes `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded`.
///
/// Each gets this hop at its end. What stood there stays if a trusted proxy called; what
/// anybody else writes there may be invented and would be believed by an upstream that reads
/// from the left, so that it is dropped. Protocol and host are those of the first hop: a
/// trusted proxy's word is kept.
///
/// `host` is the one that the client asked for.
pub(super) fn write(
    headers: &mut HeaderMap,
    connection: &Connection,
    host: Option<&str>,
    trusted: &TrustedProxies,
) {
    let is_front = trusted.proxies.contains(connection.peer.ip());
    let invented = |name: &HeaderName| {
        let name = name.as_str();
        // Many services read `_` as `-` and then cannot tell the two apart, so that nobody
        // may write such a name: a proxy passes on what it does not know.
        is_harmful(name)
            || is_about_client(name, trusted.header.as_ref()) && (!is_front || name.contains('_'))
    };
    let dropped: Vec<_> = headers.keys().filter(|name| invented(name)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    append(headers, &FOR, connection.ip.clone());
    append(headers, &FORWARDED, element(connection, host));
    if !headers.contains_key(&PROTO) {
        headers.insert(&PROTO, HeaderValue::from_static(connection.protocol()));
    }
    if let Some(host) = host
        && !headers.contains_key(&HOST)
    {
        let host = match headers.get(header::HOST) {
            Some(host) => Ok(host.clone()),
            None => HeaderValue::from_str(host),
        };
        headers.extend(host.ok().map(|host| (HOST, host)));
    }
}

/// Removes from the trailers of a request what must not come so late: where a service adds
/// trailers to the fields of the head, they would say who the client is or where the request
/// ends (RFC 9110 §6.5.1).
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    hop::remove_framing(trailers);
    let dropped: Vec<_> = trailers
        .keys()
        .filter(|name| {
            is_about_client(name.as_str(), None)
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

/// Whether a field says who the client is or what it asked for, as only those in front of the
/// service can know.
fn is_about_client(name: &str, own: Option<&HeaderName>) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| is_spelling(start, PREFIX))
        || NAMES.iter().any(|known| is_spelling(name, known))
        || own.is_some_and(|own| is_spelling(name, own.as_str()))
}

/// Whether a field is always removed. A trusted proxy that does not know the field forwards what a
/// stranger wrote.
fn is_harmful(name: &str) -> bool {
    let is_hidden_framing = name.contains('_') && hop::is_framing(name);
    is_hidden_framing || HARMFUL.iter().any(|known| is_spelling(name, known))
}

/// Whether a name is this one, with `_` for `-` or without.
pub(super) fn is_spelling(name: &str, known: &str) -> bool {
    let dashed = |byte| if byte == b'_' { b'-' } else { byte };
    name.len() == known.len() && name.bytes().map(dashed).eq(known.bytes().map(dashed))
}

/// The element of this gateway in `Via`.
#[derive(Clone, Debug)]
pub struct Via {
    name: Arc<str>,
    /// For HTTP/1.0, HTTP/1.1 and HTTP/2.
    elements: [HeaderValue; 3],
}

impl Via {
    /// By the name of this process.
    ///
    /// # Errors
    /// The name cannot be in a field.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderValue> {
        let element = |version: &str| HeaderValue::try_from(format!("{version} {name}"));
        Ok(Self {
            name: name.into(),
            elements: [element("1.0")?, element("1.1")?, element("2.0")?],
        })
    }

    /// Whether the request has come through here before, which it would then do for ever.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get_all(VIA).iter().any(|line| {
            line.to_str().is_ok_and(|line| {
                line.split(',').any(|hop| hop.split_whitespace().nth(1) == Some(&*self.name))
            })
        })
    }

    /// Says that the request came through here (RFC 9110 §7.6.3).
    pub(super) fn append_to(&self, headers: &mut HeaderMap, version: Version) {
        let [http10, http11, http2] = &self.elements;
        let element = match version {
            Version::HTTP_10 => http10,
            Version::HTTP_2 => http2,
            _ => http11,
        };
        append(headers, &VIA, element.clone());
    }
}

/// One hop of RFC 7239.
fn element(connection: &Connection, host: Option<&str>) -> HeaderValue {
    // A quote or a backslash would let the client write elements of its own.
    let Some(host) = host.filter(|host| !host.contains(['"', '\\'])) else {
        return connection.hop.clone();
    };
    let element = [connection.hop.as_bytes(), b";host=\"", host.as_bytes(), b"\""].concat();
    // An authority and the hop are values already.
    HeaderValue::from_maybe_shared(Bytes::from(element)).unwrap_or_else(|_| connection.hop.clone())
}

/// Adds to the end of a list. It becomes one line, because some servers read only the first.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: HeaderValue) {
    let mut list = Vec::new();
    for line in headers.get_all(name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    let value = if list.is_empty() {
        Ok(element)
    } else {
        list.extend_from_slice(element.as_bytes());
        HeaderValue::from_maybe_shared(Bytes::from(list))
    };
    if let Ok(value) = value {
        headers.insert(name, value);
    }
}

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The header for a prefix that was removed from the path.
pub(super) const PATH_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// `X-Forwarded-For` and all that services have added to it: `-Port`, `-Prefix`, `-User`.
const PREFIX: &str = "x-forwarded-";

/// Services believe these as they believe the fields that the gateway writes.
const NAMES: [&str; 25] = [
    "forwarded",
    "forwarded-for",
    "x-forwarded",
    "x-original-forwarded-for",
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
    "cf-connecting-ipv6",
    "cf-pseudo-ipv4",
    "fastly-client-ip",
    "fly-client-ip",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-envoy-external-address",
    "x-nf-client-connection-ip",
];

/// Some services take the path from the first three, so that another limit was asked. CGI programs
/// get `Proxy` as the variable `HTTP_PROXY`, and send their own requests through that proxy.
const HARMFUL: [&str; 4] = ["x-original-url", "x-original-uri", "x-rewrite-url", "proxy"];

#[cfg(test)]
mod tests {
    use super::*;

    fn told(peer: &str, host: Option<&str>, lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let connection = Connection::new(peer.parse().unwrap(), true).unwrap();
        let trusted = TrustedProxies {
            proxies: key::TrustedProxies::parse(["loopback"]).unwrap(),
            header: Some(HeaderName::from_static("x-our-balancer")),
        };
        write(&mut headers, &connection, host, &trusted);
        headers
    }

    #[test]
    fn a_trusted_proxy_is_carried_on() {
        let headers = told(
            "127.0.0.1:9",
            Some("inner:80"),
            &[
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-for", "192.0.2.2"),
                ("forwarded", "for=192.0.2.1"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "shop.example"),
            ],
        );
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1, 192.0.2.2, 127.0.0.1");
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
        assert_eq!(
            headers["forwarded"],
            "for=192.0.2.1, for=127.0.0.1;proto=https;host=\"inner:80\""
        );
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "shop.example");
    }

    #[test]
    fn what_a_stranger_invents_is_dropped() {
        let headers = told(
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
    fn a_stranger_names_neither_client_nor_path_in_any_spelling() {
        let invented = [
            ("x_forwarded_for", "127.0.0.1"),
            ("x-forwarded_for", "127.0.0.1"),
            ("x_real_ip", "127.0.0.1"),
            ("x-forwarded-user", "root"),
            ("x-our-balancer", "127.0.0.1"),
            ("x_our_balancer", "127.0.0.1"),
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
        let headers = told("192.0.2.1:9", None, &[&invented[..], &kept].concat());
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        for (name, _) in invented {
            assert!(!names.contains(&name), "{name}");
        }
        for (name, _) in kept {
            assert!(names.contains(&name), "{name}");
        }
        // A proxy writes these with dashes, and passes on what it does not know.
        let headers = told("127.0.0.1:9", None, &invented);
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        for (name, _) in invented {
            let is_of_a_proxy = !name.contains('_') && !name.ends_with("-url") && name != "proxy";
            assert_eq!(names.contains(&name), is_of_a_proxy, "{name}");
        }
    }

    #[test]
    fn a_mapped_address_is_told_as_ipv4_and_a_host_that_would_end_its_quotes_is_not_told() {
        let headers = told("[::ffff:192.0.2.9]:9", Some("a\"b"), &[]);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.9");
        assert_eq!(headers["forwarded"], "for=192.0.2.9;proto=https");
    }

    #[test]
    fn a_request_that_has_passed_is_recognised() {
        let mut headers = HeaderMap::new();
        let (ours, other) = (Via::new("tollgate-1").unwrap(), Via::new("other").unwrap());
        other.append_to(&mut headers, Version::HTTP_2);
        assert!(!ours.is_in(&headers));
        ours.append_to(&mut headers, Version::HTTP_11);
        assert_eq!(headers["via"], "2.0 other, 1.1 tollgate-1");
        assert!(ours.is_in(&headers));
        assert!(!Via::new("tollgate").unwrap().is_in(&headers));
    }
}
