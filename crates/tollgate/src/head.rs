use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// The head of a request. The layer decides before the body is read, and keys, costs and conditions
/// do not depend on the type of the body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target as it was sent. One resource has many spellings (`//`, `%2e`, a trailing slash),
    /// so use [`key::MatchedRoute`](crate::key::MatchedRoute) as a key.
    pub uri: &'a Uri,
    /// The protocol version.
    pub version: Version,
    /// The headers. A client chooses all values that no trusted proxy overwrites.
    pub headers: &'a HeaderMap,
    /// The extensions of the server and outer layers: peer address, matched route, user.
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

pub(crate) type Condition = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
