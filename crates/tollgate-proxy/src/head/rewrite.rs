//! Strips path prefixes, and rewrites redirects to the server's own URL.

use http::header::{HeaderMap, HeaderValue, LOCATION};

use crate::settings::Address;

/// The path and query after the prefix, which must end where a segment does.
pub(crate) fn strip<'a>(sent: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = sent.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some(rest)
}

/// Changes a `Location` below the server's URL, which clients may not reach, into a path on the
/// gateway. Other values remain, because a service may have read `X-Forwarded-Prefix` or the
/// client's host.
pub(crate) fn redirect(headers: &mut HeaderMap, server: &Address, prefix: &str) {
    let Some(location) = headers.get_mut(LOCATION) else { return };
    let path = location.to_str().ok().and_then(|sent| public_path(sent, server, prefix));
    if let Some(Ok(path)) = path.map(HeaderValue::try_from) {
        *location = path;
    }
}

fn public_path(sent: &str, server: &Address, prefix: &str) -> Option<String> {
    let Address { endpoint, base_path } = server;
    let mut rest = sent;
    for part in [endpoint.scheme.as_str(), "://", endpoint.authority.as_str()] {
        let (start, end) = rest.split_at_checked(part.len())?;
        rest = start.eq_ignore_ascii_case(part).then_some(end)?;
    }
    let rest = rest.strip_prefix(base_path.as_str())?;
    let slash = match rest.as_bytes().first() {
        Some(b'/') => "",
        None | Some(b'?' | b'#') => "/",
        Some(_) => return None,
    };
    let path = format!("{prefix}{slash}{rest}");
    // A client reads `//name` as another host.
    (!path.starts_with("//") && !path.starts_with("/\\")).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::settings::Endpoint;
    use http::uri::Scheme;

    use super::*;

    #[test]
    fn redirects_lead_to_the_gateway() {
        let endpoint = |socket: Option<&str>| Endpoint {
            scheme: Scheme::HTTP,
            authority: "app:3000".parse().unwrap(),
            socket: socket.map(|it| Arc::from(std::path::Path::new(it))),
        };
        for (base, prefix, sent, expected) in [
            ("", "/v1", "http://app:3000/login?a=/b#c", "/v1/login?a=/b#c"),
            ("", "/v1", "HTTP://APP:3000/Login", "/v1/Login"),
            ("", "/v1", "http://app:3000", "/v1/"),
            ("", "", "http://app:3000?a", "/?a"),
            ("", "", "http://app:3000/login", "/login"),
            ("/base", "/v1", "http://app:3000/base/a", "/v1/a"),
            ("/base", "/v1", "http://app:3000/base", "/v1/"),
            // No path on the gateway leads there.
            ("/base", "/v1", "http://app:3000/based", "http://app:3000/based"),
            ("/base", "/v1", "http://app:3000/other", "http://app:3000/other"),
            ("", "/v1", "http://app:30001/a", "http://app:30001/a"),
            ("", "/v1", "http://app:3000.evil.example/", "http://app:3000.evil.example/"),
            ("", "/v1", "http://app:3000@evil.example/", "http://app:3000@evil.example/"),
            ("", "/v1", "https://app:3000/a", "https://app:3000/a"),
            ("", "/v1", "/login", "/login"),
            ("", "/v1", "login", "login"),
            // As a path, these would lead to another host.
            ("", "", "http://app:3000//evil.example", "http://app:3000//evil.example"),
            ("", "", "http://app:3000/\\evil.example", "http://app:3000/\\evil.example"),
        ] {
            for socket in [None, Some("/run/app.sock")] {
                let server = Address { endpoint: endpoint(socket), base_path: base.to_owned() };
                let mut headers = HeaderMap::new();
                headers.insert(LOCATION, HeaderValue::from_str(sent).unwrap());
                redirect(&mut headers, &server, prefix);
                assert_eq!(headers[LOCATION], expected, "{base} {prefix} {sent}");
            }
        }
    }

    #[test]
    fn prefixes_end_at_segments() {
        for (sent, rest) in [
            ("/v1", Some("")),
            ("/v1/", Some("/")),
            ("/v1/a?b=/v1", Some("/a?b=/v1")),
            ("/v1?b", Some("?b")),
            ("/v10/a", None),
            ("/v1%2Fa", None),
            ("/a/v1", None),
            ("/V1/a", None),
        ] {
            assert_eq!(strip(sent, "/v1"), rest, "{sent}");
        }
    }
}
