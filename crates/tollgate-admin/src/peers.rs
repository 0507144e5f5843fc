//! Other admin addresses. To a browser, a peer's page is another site, so CORS applies. It may only
//! read `GET /events`.

use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, StatusCode};
use tollgate::observe::Origin;

use super::error::AdminError;

pub(super) const EVENTS: &str = "/events";

/// The origins of the peers, as browsers send them.
pub(super) struct Peers(Vec<HeaderValue>);

impl Peers {
    pub(super) fn new(named: Vec<String>) -> Result<Self, AdminError> {
        let origin = |peer: String| match peer.parse::<Origin>() {
            Ok(origin) => Ok(origin.into()),
            Err(_) => Err(AdminError::Peer(peer)),
        };
        Ok(Self(named.into_iter().map(origin).collect::<Result<_, _>>()?))
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
