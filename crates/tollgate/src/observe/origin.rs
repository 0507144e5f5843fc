use std::str::FromStr;

use http::HeaderValue;
use http::uri::Authority;

/// The origin of an admin address, such as `http://10.0.0.7:8081`, as browsers send it: in lower
/// case and without the scheme's usual port.
///
/// ```
/// use http::HeaderValue;
/// use tollgate::observe::Origin;
///
/// let origin: Origin = "http://API1.example:80".parse()?;
/// assert_eq!(HeaderValue::from(origin), "http://api1.example");
/// # Ok::<(), tollgate::observe::OriginError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin(HeaderValue);

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let (scheme, rest) = text.split_once("://").ok_or(OriginError)?;
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(OriginError),
        };
        let authority: Authority = rest.parse().map_err(|_| OriginError)?;
        let host = authority.host().to_ascii_lowercase();
        // The parser allows further bytes, which could inject text into a content security policy.
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(OriginError);
        }
        let port = authority.port_u16();
        let plain = port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        if !rest.eq_ignore_ascii_case(&plain) {
            return Err(OriginError);
        }
        let origin = match port {
            Some(port) if port != usual => format!("{scheme}://{host}:{port}"),
            _ => format!("{scheme}://{host}"),
        };
        HeaderValue::try_from(origin).map(Self).map_err(|_| OriginError)
    }
}

impl From<Origin> for HeaderValue {
    fn from(Origin(origin): Origin) -> Self {
        origin
    }
}

/// Error returned when a text is not an [`Origin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0607")]
#[error("expected only scheme, host and port, such as http://10.0.0.7:8081 [TG0607]")]
pub struct OriginError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_normalized() {
        for (text, expected) in [
            ("http://127.0.0.1:9100", Some("http://127.0.0.1:9100")),
            ("http://API1.Example:80", Some("http://api1.example")),
            ("https://api1.example:443", Some("https://api1.example")),
            ("https://api1.example:80", Some("https://api1.example:80")),
            ("http://[::1]:9100", Some("http://[::1]:9100")),
            ("127.0.0.1:9100", None),
            ("ftp://api1", None),
            ("http://", None),
            ("http://api1/", None),
            ("http://api1:9100/events", None),
            ("http://eve@api1", None),
            ("http://api1:port", None),
            ("http://api1:99999", None),
            ("http://api1; script-src *", None),
            ("http://api1;", None),
            ("http://*", None),
            ("null", None),
        ] {
            let origin = text.parse().map(|Origin(origin)| origin);
            assert_eq!(origin.as_ref().ok().map(|it| it.to_str().unwrap()), expected, "{text}");
        }
    }
}
