//! gRPC calls and their denials.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::head::Condition;
use crate::head::RequestHead;
use crate::paths::Paths;

/// The gRPC services behind a layer, which the program declares. The request alone does not
/// identify a call: a client can send any content type, and `/api.v1/items` looks like a gRPC path.
#[derive(Clone, Default)]
pub(crate) enum GrpcServices {
    #[default]
    None,
    All,
    /// The services called by requests that match the condition.
    If(Arc<Condition>),
}

impl GrpcServices {
    pub(crate) const fn all(all: bool) -> Self {
        if all { Self::All } else { Self::None }
    }

    pub(crate) fn at(paths: Paths) -> Self {
        Self::If(Arc::new(move |head| paths.surely_contains(head.uri.path())))
    }

    /// Whether a request is a gRPC call to one of these services.
    #[inline]
    pub(crate) fn is_call(&self, head: &RequestHead<'_>) -> bool {
        match self {
            Self::None => false,
            Self::All => is_grpc_request(head),
            Self::If(condition) => is_grpc_request(head) && condition(head),
        }
    }
}

fn is_grpc_request(head: &RequestHead<'_>) -> bool {
    *head.method == Method::POST && has_grpc_type(head.headers)
}

/// Whether the content type is `application/grpc`, alone or followed by `+` and a codec or `;` and
/// parameters. `application/grpc-web` is a different protocol.
fn has_grpc_type(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let Some((start, rest)) = content_type.as_bytes().split_at_checked(GRPC.len()) else {
        return false;
    };
    start.eq_ignore_ascii_case(GRPC.as_bytes())
        && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

pub(crate) fn trailers_only(status: &'static str, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(status));
    let message = utf8_percent_encode(message, ESCAPED).to_string();
    // Percent-encoding leaves only printable characters. Even if it failed, the status would
    // suffice.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

const GRPC: &str = "application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The gRPC protocol requires escaping these characters and all non-ASCII characters.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

#[cfg(test)]
mod tests;
