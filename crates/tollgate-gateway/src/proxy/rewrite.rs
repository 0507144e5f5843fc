//! Changes of the configuration to requests and responses on their way.

use std::fmt;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, VIA};

use super::settings::Address;
use super::{forwarded, hop};

/// Fields of a header that are removed and set, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the header says where a message ends or is about one connection")]
    Framing,
    #[error("the header `Host` has a key of its own: `preserveHost`")]
    Host,
    /// Without it, a request could go round in a loop.
    #[error("the gateway finds loops by this header")]
    Via,
}

impl Edits {
    pub fn set(&mut self, name: HeaderName, mut value: HeaderValue) -> Result<(), EditError> {
        check(&name)?;
        // It may be a password.
        value.set_sensitive(true);
        self.set.push((name, value));
        Ok(())
    }

    pub fn remove(&mut self, name: HeaderName) -> Result<(), EditError> {
        check(&name)?;
        self.remove.push(name);
        Ok(())
    }

    pub const fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        self.clear(headers);
        headers.extend(self.set.iter().cloned());
    }

    /// Removes the fields that are removed or set, whatever their spelling: a service that reads
    /// `_` as `-` would otherwise find the value of the client.
    pub(super) fn clear(&self, headers: &mut HeaderMap) {
        if self.is_empty() {
            return;
        }
        let names = || self.set.iter().map(|(name, _)| name).chain(&self.remove);
        let is_edited = |name: &HeaderName| {
            names().any(|known| forwarded::is_spelling(name.as_str(), known.as_str()))
        };
        let edited: Vec<_> = headers.keys().filter(|name| is_edited(name)).cloned().collect();
        for name in edited {
            headers.remove(name);
        }
    }
}

/// The names alone: a value may be a password.
impl fmt::Display for Edits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.set.iter().map(|(name, _)| ("set", name));
        let all = set.chain(self.remove.iter().map(|name| ("remove", name)));
        for (index, (what, name)) in all.enumerate() {
            write!(f, "{}{what} {name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn check(name: &HeaderName) -> Result<(), EditError> {
    let is = |known: &HeaderName| forwarded::is_spelling(name.as_str(), known.as_str());
    if hop::is_framing(name.as_str()) {
        Err(EditError::Framing)
    } else if is(&HOST) {
        Err(EditError::Host)
    } else if is(&VIA) {
        Err(EditError::Via)
    } else {
        Ok(())
    }
}

/// The rest of a path and its query after the prefix, which ends where a segment does.
pub(super) fn strip<'a>(sent: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = sent.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some(rest)
}

/// Changes a `Location` below the URL of the server, which clients may not reach, into a path of the
/// gateway. Other values stay: a service may have read `X-Forwarded-Prefix` or the client's host.
pub(super) fn redirect(headers: &mut HeaderMap, server: &Address, prefix: &str) {
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

    use http::uri::Scheme;

    use super::super::settings::Endpoint;
    use super::*;

    #[test]
    fn a_redirect_to_the_url_of_the_server_leads_to_the_gateway() {
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
            // No path of the gateway leads there.
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
    fn a_prefix_ends_where_a_segment_does() {
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

    #[test]
    fn a_field_that_is_set_has_one_value_and_one_spelling() {
        let mut edits = Edits::default();
        edits.set(HeaderName::from_static("x-role"), HeaderValue::from_static("none")).unwrap();
        edits.remove(HeaderName::from_static("x-gone")).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-role", "admin"),
            ("x_role", "admin"),
            ("x-gone", "1"),
            ("x_gone", "1"),
            ("x-kept", "1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append("x-role", HeaderValue::from_static("root"));
        edits.apply(&mut headers);
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(
            (&headers["x-role"], &headers["x-kept"]),
            (&"none".parse().unwrap(), &"1".parse().unwrap())
        );
        assert!(!format!("{edits:?}").contains("none"), "a value may be a password");
    }

    #[test]
    fn fields_that_frame_messages_cannot_be_edited() {
        for (name, error) in [
            ("content-length", EditError::Framing),
            ("content_length", EditError::Framing),
            ("transfer-encoding", EditError::Framing),
            ("connection", EditError::Framing),
            ("upgrade", EditError::Framing),
            ("te", EditError::Framing),
            ("keep-alive", EditError::Framing),
            ("host", EditError::Host),
            ("via", EditError::Via),
        ] {
            let (name, mut edits) = (HeaderName::from_static(name), Edits::default());
            let value = HeaderValue::from_static("0");
            assert_eq!(edits.set(name.clone(), value), Err(error), "{name}");
            assert_eq!(edits.remove(name), Err(error));
            assert!(edits.is_empty());
        }
    }
}
