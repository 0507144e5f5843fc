//! gRPC calls and their denials.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::head::Condition;
use crate::head::RequestHead;
use crate::paths::Paths;

/// The gRPC services behind a layer, as the program declares them. The request alone cannot show it:
/// a client can write any content type, and `/api.v1/items` has the form of a gRPC path.
#[derive(Clone, Default)]
pub(crate) enum GrpcServices {
    #[default]
    None,
    All,
    /// The services of requests for which the condition holds.
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
            Self::All => says_call(head),
            Self::If(condition) => says_call(head) && condition(head),
        }
    }
}

fn says_call(head: &RequestHead<'_>) -> bool {
    *head.method == Method::POST && has_grpc_type(head.headers)
}

/// Whether the content type is `application/grpc`, alone or followed by `+` and a codec or `;`
/// and parameters. `application/grpc-web` is something else.
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
    // The encoded text is printable. Without it the status would suffice.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

const GRPC: &str = "application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// As the gRPC protocol asks for, which also escapes all that is not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

#[cfg(test)]
mod tests;
