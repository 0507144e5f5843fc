//! Headers that apply to one connection and are not forwarded.

use http::header::{
    self, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};

use crate::header_names::{HOP_BY_HOP, is_framing};

/// Removes the headers that apply only to the incoming connection (RFC 9110 §7.6.1): the known
/// headers, and those that `Connection` lists. The latter cannot remove the headers in `identity`:
/// without its key, the service might assign a request to another client.
///
/// Call this before the gateway adds its own headers. Otherwise a client could remove them with
/// `Connection`.
pub(crate) fn remove(headers: &mut HeaderMap, identity: &[HeaderName]) {
    // A scan is cheap: messages have few headers, and most have no hop-by-hop header.
    let is_hop_by_hop = |name: &&HeaderName| HOP_BY_HOP.contains(name);
    let mut named: Vec<_> = headers.keys().filter(is_hop_by_hop).cloned().collect();
    if named.is_empty() {
        return;
    }
    for line in headers.get_all(CONNECTION) {
        for name in line.as_bytes().split(|byte| *byte == b',') {
            let name = name.trim_ascii();
            // Nearly every line contains one of these, which are not header names.
            if [&b"keep-alive"[..], b"close"].iter().any(|it| name.eq_ignore_ascii_case(it)) {
                continue;
            }
            match HeaderName::from_bytes(name) {
                // Length, host and identity are kept even if the client lists them here. Otherwise
                // the next server would read a different message.
                Ok(name) if !END_TO_END.contains(&name) && !identity.contains(&name) => {
                    named.push(name);
                }
                _ => {}
            }
        }
    }
    for name in &named {
        headers.remove(name);
    }
}

/// Whether `chunked` is the only transfer coding. hyper decodes chunks, but another coding would
/// remain in the body, and the next server could not detect it without this header.
pub(crate) fn is_merely_chunked(headers: &HeaderMap) -> bool {
    let mut codings = tokens(headers, &TRANSFER_ENCODING);
    codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// Removes trailers that are only allowed as headers (RFC 9110 §6.5.1). HTTP/2 forbids them, so the
/// message would be rejected.
pub(crate) fn remove_framing(trailers: &mut HeaderMap) {
    let framing = trailers.keys().filter(|name| is_framing(name.as_str()));
    for name in framing.cloned().collect::<Vec<_>>() {
        trailers.remove(name);
    }
}

pub(crate) fn was_asked_for(answer: &HeaderMap, asked: &HeaderValue) -> bool {
    let asked = || asked.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    answer.get_all(UPGRADE).iter().count() == 1
        && tokens(answer, &UPGRADE).all(|token| asked().any(|it| it.eq_ignore_ascii_case(token)))
}

/// Whether the client reads trailers (`TE: trailers`). Other values of `TE` concern only this
/// connection.
pub(crate) fn reads_trailers(headers: &HeaderMap) -> bool {
    tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case(b"trailers"))
}

/// The protocols of the client's upgrade request, if the gateway may forward it.
///
/// `h2c`, other versions of HTTP, and TLS are not forwarded: a client could send any number of
/// requests over them, past all limits.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    if !tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade")) {
        return None;
    }
    let mut lines = headers.get_all(UPGRADE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let may_carry_http = |token: &[u8]| {
        let token = token.to_ascii_lowercase();
        token.is_empty() || FORBIDDEN.iter().any(|name| token.starts_with(name))
    };
    (!tokens(headers, &UPGRADE).any(may_carry_http)).then(|| line.clone())
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

const FORBIDDEN: [&[u8]; 4] = [b"h2", b"http", b"shttp", b"tls"];

static END_TO_END: [HeaderName; 13] = [
    HOST,
    CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static("x-api-key"),
    header::FORWARDED,
    header::VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    // The gateway has already written these.
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let parse = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(parse).collect()
    }

    #[test]
    fn connection_headers_are_removed() {
        let mut fields = headers(&[
            ("connection", "close, X-Private"),
            ("connection", "x-other,,"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers, deflate"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-private", "1"),
            ("x-other", "2"),
            ("x-kept", "3"),
            ("trailer", "x-sum"),
        ]);
        remove(&mut fields, &[]);
        assert_eq!(fields, headers(&[("x-kept", "3"), ("trailer", "x-sum")]));
    }

    #[test]
    fn connection_cannot_remove_shared_headers() {
        let kept = [
            ("host", "a"),
            ("content-length", "5"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-api-key", "k"),
            ("x-our-key", "k"),
        ];
        let mut fields = headers(&kept);
        fields.insert(
            CONNECTION,
            HeaderValue::from_static(
                "host, content-length, x-forwarded-for, authorization, x-api-key, X-Our-Key",
            ),
        );
        remove(&mut fields, &[HeaderName::from_static("x-our-key")]);
        assert_eq!(fields, headers(&kept));
    }

    #[test]
    fn upgrades_only_to_requested_protocols() {
        for (asked, answered, expected) in [
            ("websocket", &["websocket"][..], true),
            ("websocket", &["WebSocket"], true),
            ("a/1, b", &["b"], true),
            ("a/1, b", &["b, a/1"], true),
            ("a/1, b", &["a/1", "b"], false),
            ("a/1", &["a/2"], false),
            ("a/1", &["a/1, b"], false),
            ("a/1", &["a/1", "b"], false),
            ("a/1", &[""], false),
            ("a/1", &[], false),
        ] {
            let fields: Vec<_> = answered.iter().map(|it| ("upgrade", *it)).collect();
            let asked = HeaderValue::from_static(asked);
            assert_eq!(
                was_asked_for(&headers(&fields), &asked),
                expected,
                "{asked:?} {answered:?}"
            );
        }
    }

    #[test]
    fn upgrades_to_http_are_dropped() {
        for (connection, protocols, passes) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "WebSocket", true),
            ("upgrade", "a/1, b", true),
            ("upgrade", "h2c", false),
            ("upgrade", "TLS/1.0", false),
            ("upgrade", "websocket, H2C", false),
            ("upgrade", "HTTP/2.0", false),
            ("upgrade", "", false),
            ("close", "websocket", false),
        ] {
            let fields = headers(&[("connection", connection), ("upgrade", protocols)]);
            assert_eq!(upgrade(&fields).is_some(), passes, "{connection}: {protocols}");
        }
        let twice =
            headers(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]);
        assert_eq!(upgrade(&twice), None);
    }

    #[test]
    fn te_announces_trailers() {
        for (te, reads) in [
            ("trailers", true),
            ("deflate, Trailers", true),
            ("trailers;q=0.5", false),
            ("", false),
        ] {
            assert_eq!(reads_trailers(&headers(&[("te", te)])), reads, "{te}");
        }
    }
}
