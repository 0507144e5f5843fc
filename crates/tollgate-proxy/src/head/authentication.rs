//! Schemes that authenticate a connection instead of a request.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

/// Whether a request authenticates its connection.
pub(crate) fn authenticates_connection(headers: &HeaderMap) -> bool {
    has_scheme(headers, &AUTHORIZATION)
}

/// Whether a response asks its client to authenticate the connection. Several services expect the
/// answer on the same connection.
pub(crate) fn asks_to_authenticate<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        && has_scheme(response.headers(), &WWW_AUTHENTICATE)
}

/// Whether a header names NTLM or Negotiate. Negotiate may contain NTLM, and IIS also keeps
/// connections authenticated that Kerberos has authenticated.
fn has_scheme(headers: &HeaderMap, name: &HeaderName) -> bool {
    let is_known = |scheme: &[u8]| {
        let starts = |known: &[u8]| {
            scheme.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known))
        };
        starts(b"ntlm") || starts(b"nego")
    };
    let mut values = headers.get_all(name).iter();
    values.any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|it| is_known(it.trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn schemes_bind_connections() {
        for (value, binds) in [
            ("NTLM", true),
            ("ntlm TlRMTVNTUAAB", true),
            ("Negotiate YII=", true),
            ("negotiate", true),
            ("Basic realm=\"a\", NTLM", true),
            ("Basic bnRsbQ==", false),
            ("Bearer ntlm", false),
            ("Digest username=\"nego\"", false),
            ("NT", false),
            ("", false),
        ] {
            let headers = [(AUTHORIZATION, HeaderValue::from_static(value))];
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(authenticates_connection(&headers), binds, "{value}");
            for (status, asks) in [(401, binds), (200, false), (403, false)] {
                let response = Response::builder().status(status);
                let response = response.header(WWW_AUTHENTICATE, value).body(()).unwrap();
                assert_eq!(asks_to_authenticate(&response), asks, "{status} {value}");
            }
        }
    }
}
