//! What a limiter may look at.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// What a limiter may look at: everything of a request but its body.
///
/// The body stays out because a limiter decides before one is read; and a type
/// without the body's type keeps every key, cost and condition free of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target as it was sent. To key on a route take [`key::MatchedRoute`](crate::key::MatchedRoute),
    /// since one resource has many spellings (`//`, `%2e`, a trailing slash).
    pub uri: &'a Uri,
    /// The protocol version.
    pub version: Version,
    /// The headers. Whatever no trusted proxy has overwritten was chosen by the client.
    pub headers: &'a HeaderMap,
    /// What the server and the layers before have put down: peer address, matched route, user.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// The head of a request.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Whether it is a CORS preflight: an OPTIONS request with `Origin` and
    /// `Access-Control-Request-Method`. Any client can send one.
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// What holds of some requests and not of others.
pub(crate) type Condition = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
