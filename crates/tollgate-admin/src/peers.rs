//! Other admin addresses. To a browser, a peer's page is another site, so CORS applies. It may only
//! read `GET /events`.

use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode};

use super::error::AdminError;

pub(super) const EVENTS: &str = "/events";

/// The origins of the peers, as browsers send them.
pub(super) struct Peers(Vec<HeaderValue>);

impl Peers {
    pub(super) fn new(named: Vec<String>) -> Result<Self, AdminError> {
        let origins = named.into_iter().map(|peer| origin(&peer).ok_or(AdminError::Peer(peer)));
        Ok(Self(origins.collect::<Result<_, _>>()?))
    }

    pub(super) fn origins(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|origin| origin.to_str().ok())
    }

    /// Returns the origin if a peer's page may send this request: a read of the stream, or its
    /// preflight.
    pub(super) fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<HeaderValue> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else { return None };
        let known = self.0.iter().find(|known| known == origin)?;
        let is_read = || *method == Method::GET;
        let is_preflight = || {
            let wanted = headers.get(ACCESS_CONTROL_REQUEST_METHOD);
            *method == Method::OPTIONS && wanted.is_some_and(|wanted| wanted == "GET")
        };
        (path == EVENTS && (is_read() || is_preflight())).then(|| known.clone())
    }
}

pub(super) fn preflight(origin: HeaderValue) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    readable(response, origin)
}

pub(super) fn readable(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}

/// `http://HOST:PORT` as a browser sends it: in lower case, without the default port.
pub(super) fn origin(peer: &str) -> Option<HeaderValue> {
    let (scheme, rest) = peer.split_once("://")?;
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority: Authority = rest.parse().ok()?;
    let host = authority.host().to_ascii_lowercase();
    // The parser allows further bytes, which could inject text into the content security policy.
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_host) {
        return None;
    }
    let port = authority.port_u16();
    let plain = port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
    if !rest.eq_ignore_ascii_case(&plain) {
        return None;
    }
    let origin = match port {
        Some(port) if port != usual => format!("{scheme}://{host}:{port}"),
        _ => format!("{scheme}://{host}"),
    };
    HeaderValue::from_str(&origin).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_normalized_origins() {
        for (peer, expected) in [
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
            let origin = origin(peer);
            let origin = origin.as_ref().map(|origin| origin.to_str().unwrap());
            assert_eq!(origin, expected, "{peer}");
        }
    }
}
