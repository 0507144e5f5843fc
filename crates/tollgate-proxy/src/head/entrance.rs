//! Normalizes each request before routes and limits read it.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use crate::path::{PathFault, PathRules, RequestPath};
use http::header::{
    CONTENT_LENGTH, COOKIE, EXPECT, Entry, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};

use super::fault::Fault;
use super::fields::{MOST_FIELDS, MOST_HEAD_BYTES};
use super::hop;

/// Brings a request into the form that routes, limits and the upstream see.
///
/// Afterwards the URI is a normalized path with the client's query, or `*` for a server-wide
/// OPTIONS. There is exactly one `Host`, which is a valid authority and the host that the client
/// requested. Only an HTTP/1.0 request may have no `Host`.
///
/// hyper has already rejected messages that HTTP forbids: contradictory lengths, a
/// `Transfer-Encoding` without `chunked` at the end, line feeds in a header. If a message has both
/// a length and a `Transfer-Encoding`, hyper has dropped the length.
pub fn admit<B>(request: &mut Request<B>, paths: PathRules) -> Result<Meaning, Fault> {
    check_method(request.method())?;
    // hyper limits the size in HTTP/2.
    if request.version() < Version::HTTP_2 && head_bytes(request) > MOST_HEAD_BYTES {
        return Err(Fault::LongHead);
    }
    // A target such as `ftp://host/file` asks a proxy to use another protocol for that host.
    if request.uri().scheme().is_some_and(|it| ![Scheme::HTTP, Scheme::HTTPS].contains(it)) {
        return Err(Fault::Scheme);
    }
    let host = set_host(request)?;
    let original = set_path(request, paths)?;
    let is_http11 = request.version() == Version::HTTP_11;
    let headers = request.headers_mut();
    check_length(headers)?;
    if headers.contains_key(TRANSFER_ENCODING) && !hop::is_merely_chunked(headers) {
        return Err(Fault::Coding);
    }
    meet_expectation(headers)?;
    join_cookies(headers);
    if headers.len() > MOST_FIELDS {
        return Err(Fault::Fields);
    }
    let upgrade = if is_http11 { hop::upgrade(headers) } else { None };
    if upgrade.is_some() && has_body(headers) {
        return Err(Fault::Upgrade);
    }
    Ok(Meaning { host, original, upgrade })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The host that the client requested. Only an HTTP/1.0 request may have none.
    pub host: Option<Authority>,
    /// The path and query that the upstream receives, if the path differs from the URI's normalized
    /// path.
    pub original: Option<PathAndQuery>,
    pub upgrade: Option<HeaderValue>,
}

/// In HTTP, `trace` and `TRACE` are different methods, but some services treat them alike.
fn check_method(method: &Method) -> Result<(), Fault> {
    if method.as_str().eq_ignore_ascii_case("CONNECT") {
        return Err(Fault::Connect);
    }
    // The service would return the headers that the gateway and other proxies have added.
    if method.as_str().eq_ignore_ascii_case("TRACE") {
        return Err(Fault::Trace);
    }
    Ok(())
}

/// The size of an HTTP/1 head without optional spaces.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let host = uri.authority().map_or(0, |it| "https://".len() + it.as_str().len());
    let target = uri.path_and_query().map_or(0, |it| it.as_str().len());
    let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
    let headers: usize = request.headers().iter().map(line).sum();
    request.method().as_str().len() + host + target + " HTTP/1.1 ".len() + headers + 4
}

fn set_host<B>(request: &mut Request<B>) -> Result<Option<Authority>, Fault> {
    let mut named = request.headers().get_all(HOST).iter();
    let (host, further) = (named.next(), named.next());
    if further.is_some() {
        return Err(Fault::Host);
    }
    let host = match host {
        None => None,
        Some(host) => Some(Authority::try_from(host.as_bytes()).map_err(|_| Fault::Host)?),
    };
    let (host, is_written) = match (request.uri().authority(), host) {
        // In HTTP/1.1 the target wins (RFC 9112 §3.2.2). In HTTP/2 both must be equal.
        (Some(target), Some(host)) if request.version() >= Version::HTTP_2 => {
            if !target.as_str().eq_ignore_ascii_case(host.as_str()) {
                return Err(Fault::Host);
            }
            (target.clone(), false)
        }
        (Some(target), _) => (target.clone(), false),
        (None, Some(host)) => (host, true),
        (None, None) if request.version() <= Version::HTTP_10 => return Ok(None),
        (None, None) => return Err(Fault::Host),
    };
    if !is_host_and_port(&host) {
        return Err(Fault::Host);
    }
    if !is_written {
        let host = HeaderValue::from_str(host.as_str()).map_err(|_| Fault::Host)?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(Some(host))
}

/// Whether an authority is only a name or an address, and possibly a port. Some services give a
/// user, an address zone or a list of hosts another meaning.
fn is_host_and_port(authority: &Authority) -> bool {
    let text = authority.as_str();
    let position = |wanted: u8| text.bytes().position(|byte| byte == wanted);
    // An IPv6 address has its colons in brackets.
    let end = if text.starts_with('[') { position(b']').map(|it| it + 1) } else { position(b':') };
    let (host, port) = text.split_at(end.unwrap_or(text.len()));
    let is_port = port.strip_prefix(':').map_or(port.is_empty(), |port| {
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        is_number && (port.is_empty() || port.parse::<u16>().is_ok())
    });
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = |host: &str| {
        host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
    };
    is_port
        && match address {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && is_name(host),
        }
}

/// Sets the normalized path. Returns the path that the upstream receives, if it differs.
fn set_path<B>(request: &mut Request<B>, paths: PathRules) -> Result<Option<PathAndQuery>, Fault> {
    let uri = request.uri();
    if uri.authority().is_some() && uri.scheme().is_none() {
        // Only CONNECT has a target without a path.
        return Err(PathFault::NotAbsolute.into());
    }
    if uri.path() == "*" && request.method() == Method::OPTIONS {
        *request.uri_mut() = Uri::from_static("*");
        return Ok(None);
    }
    // The target `http://host` means `/`.
    let path = if uri.path().is_empty() { "/" } else { uri.path() };
    let RequestPath { normal, original } = paths.read(path)?;
    if *normal == *uri.path() && uri.authority().is_none() {
        return Ok(None);
    }
    let target = |path: Cow<'_, str>| {
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.into_owned(),
        };
        // Both spellings are always valid, so this error would be a bug in `read`.
        PathAndQuery::try_from(target).map_err(|_| PathFault::NotAbsolute)
    };
    let (normal, original) = (target(normal)?, original.map(target).transpose()?);
    *request.uri_mut() = Uri::from(normal);
    Ok(original)
}

fn check_length(headers: &HeaderMap) -> Result<(), Fault> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let first = lines.next().map(HeaderValue::as_bytes);
    let is_number =
        first.is_none_or(|length| !length.is_empty() && length.iter().all(u8::is_ascii_digit));
    if is_number && lines.next().is_none() { Ok(()) } else { Err(Fault::Framing) }
}

/// Whether a body follows, according to these two HTTP/1 headers.
///
/// Some services ignore both headers in an upgrade request. They would read the body as a second
/// request, which no limit has counted.
fn has_body(headers: &HeaderMap) -> bool {
    let is_zero = |length: &HeaderValue| length.as_bytes().iter().all(|digit| *digit == b'0');
    headers.contains_key(TRANSFER_ENCODING) || !headers.get_all(CONTENT_LENGTH).iter().all(is_zero)
}

/// Removes `Expect`, because the gateway itself answers `100-continue` when it starts to read the
/// body. A denied request is answered before that.
fn meet_expectation(headers: &mut HeaderMap) -> Result<(), Fault> {
    let Entry::Occupied(lines) = headers.entry(EXPECT) else { return Ok(()) };
    let known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if !lines.iter().all(known) {
        return Err(Fault::Expectation);
    }
    lines.remove_entry_mult();
    Ok(())
}

/// HTTP/2 may send one header for each cookie, but HTTP/1 may not (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let lines: Vec<_> = [first, second].into_iter().chain(lines).collect();
    if let Ok(line) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, line);
    }
}

#[cfg(test)]
mod tests {
    use crate::path::Ambiguous;

    use super::*;

    fn request(version: Version, uri: &str, lines: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn admitted(
        version: Version,
        uri: &str,
        lines: &[(&str, &str)],
    ) -> Result<(String, String), Fault> {
        let mut request = request(version, uri, lines);
        admit(&mut request, PathRules::default())?;
        let host = request.headers().get(HOST).map_or("", |host| host.to_str().unwrap());
        Ok((host.to_owned(), request.uri().to_string()))
    }

    #[test]
    fn host_and_path_are_normalized() {
        for (version, uri, hosts, host, path) in [
            (Version::HTTP_11, "/a", &["b.c:1"][..], "b.c:1", "/a"),
            (Version::HTTP_11, "/a//%62;x?q=%2F&;", &["b"], "b", "/a/b?q=%2F&;"),
            (Version::HTTP_11, "http://target/a", &["other"], "target", "/a"),
            (Version::HTTP_11, "http://target", &["other"], "target", "/"),
            (Version::HTTP_11, "http://target?q", &["other"], "target", "/?q"),
            (Version::HTTP_10, "/a", &[], "", "/a"),
            (Version::HTTP_2, "https://b:8/a?q", &[], "b:8", "/a?q"),
            (Version::HTTP_2, "https://b/a", &["B"], "b", "/a"),
            (Version::HTTP_11, "/", &["[2001:db8::1]:80"], "[2001:db8::1]:80", "/"),
            (Version::HTTP_11, "/", &["[::1]:"], "[::1]:", "/"),
            (Version::HTTP_11, "/", &["a:"], "a:", "/"),
        ] {
            let lines: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            let expected = Ok((host.to_owned(), path.to_owned()));
            assert_eq!(admitted(version, uri, &lines), expected, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn invalid_hosts_are_rejected() {
        for (version, uri, hosts) in [
            (Version::HTTP_11, "/", &[][..]),
            (Version::HTTP_11, "/", &["a", "a"]),
            (Version::HTTP_11, "/", &["a/b"]),
            (Version::HTTP_11, "/", &["user@a"]),
            (Version::HTTP_11, "/", &["a b"]),
            (Version::HTTP_11, "/", &[""]),
            (Version::HTTP_11, "/", &["a,b"]),
            (Version::HTTP_11, "/", &["a:99999"]),
            (Version::HTTP_11, "/", &["a:+1"]),
            (Version::HTTP_11, "/", &["[fe80::1%25eth0]"]),
            (Version::HTTP_11, "/", &["[::1]a"]),
            (Version::HTTP_11, "/", &["a[::1]"]),
            (Version::HTTP_11, "/", &["[::1]@a"]),
            (Version::HTTP_11, "/", &["[::1]:80@a"]),
            (Version::HTTP_11, "/", &["a:1@b"]),
            (Version::HTTP_11, "/", &[":80"]),
            (Version::HTTP_11, "http://user@a/", &["a"]),
            (Version::HTTP_2, "https://a/", &["b"]),
        ] {
            let lines: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(admitted(version, uri, &lines), Err(Fault::Host), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        let host = ("host", "a");
        for (lines, fault) in [
            (&[host, ("content-length", "5"), ("content-length", "5")][..], Fault::Framing),
            (&[host, ("content-length", "5, 5")], Fault::Framing),
            (&[host, ("content-length", "+5")], Fault::Framing),
            (&[host, ("expect", "200-ok")], Fault::Expectation),
            (&[host, ("transfer-encoding", "gzip, chunked")], Fault::Coding),
            (
                &[host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                Fault::Coding,
            ),
        ] {
            assert_eq!(admitted(Version::HTTP_11, "/", lines), Err(fault), "{lines:?}");
        }
        let fault = Fault::Path(PathFault::Ambiguous("%2F"));
        assert_eq!(admitted(Version::HTTP_11, "/a%2Fb", &[host]), Err(fault));
        let fault = Fault::Path(PathFault::NotAbsolute);
        for target in ["*", "a", "a:80"] {
            assert_eq!(admitted(Version::HTTP_11, target, &[host]), Err(fault), "{target}");
        }
        let mut tunnel = request(Version::HTTP_11, "a:443", &[host]);
        for (method, fault) in
            [("CONNECT", Fault::Connect), ("TRACE", Fault::Trace), ("Trace", Fault::Trace)]
        {
            *tunnel.method_mut() = method.parse().unwrap();
            let keep = PathRules { ambiguous: Ambiguous::Keep, ..PathRules::default() };
            assert_eq!(admit(&mut tunnel, keep), Err(fault));
        }
    }

    #[test]
    fn upgrades_have_no_body() {
        let asked = [("host", "a"), ("connection", "upgrade"), ("upgrade", "websocket")];
        for (version, field, is_refused) in [
            (Version::HTTP_11, ("content-length", "1"), true),
            (Version::HTTP_11, ("transfer-encoding", "chunked"), true),
            (Version::HTTP_11, ("content-length", "00"), false),
            (Version::HTTP_11, ("accept", "*/*"), false),
            // HTTP/1.0 has no upgrades, so this is an ordinary request.
            (Version::HTTP_10, ("content-length", "1"), false),
        ] {
            let lines = [&asked[..], &[field]].concat();
            let outcome = admitted(version, "/", &lines).err();
            assert_eq!(outcome, is_refused.then_some(Fault::Upgrade), "{field:?}");
        }
    }

    #[test]
    fn joins_cookies_and_removes_expect() {
        let mut request = request(
            Version::HTTP_2,
            "https://a/",
            &[("cookie", "a=1"), ("cookie", "b=2"), ("expect", "100-Continue")],
        );
        admit(&mut request, PathRules::default()).unwrap();
        assert_eq!(request.headers()[COOKIE], "a=1; b=2");
        assert_eq!(request.headers().get_all(COOKIE).iter().count(), 1);
        assert!(!request.headers().contains_key(EXPECT));
    }
}
