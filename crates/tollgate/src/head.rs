//! The part of a request that decisions depend on.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// A request's head, without the body. The layer decides before the body is read, so keys, costs
/// and conditions do not depend on the body type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The HTTP method of the request.
    pub method: &'a Method,
    /// The target of the request, exactly as sent by the client. A resource can have many spellings
    /// (`//`, `%2e`, a trailing slash), so use [`key::MatchedRoute`](crate::key::MatchedRoute) as a
    /// key.
    pub uri: &'a Uri,
    /// The HTTP version of the request.
    pub version: Version,
    /// The request headers. The client controls every value that no trusted proxy overwrites.
    pub headers: &'a HeaderMap,
    /// The extensions added by the server and outer layers, such as peer address, matched route or
    /// user.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Borrows a request's head.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    pub(crate) const fn of_parts(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }

    /// Returns whether the request is a CORS preflight: an OPTIONS request with `Origin` and
    /// `Access-Control-Request-Method`. Any client can send such a request.
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
}

pub(crate) type Condition = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
