//! gRPC calls and their denials.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::RequestHead;
use crate::key::route;

/// Whether a request is a gRPC call. [`grpc`](crate::layer::RateLimitLayerBuilder::grpc) has the rule.
#[inline]
pub(crate) fn is_call(head: &RequestHead<'_>, is_grpc: Option<bool>) -> bool {
    let is_method =
        || is_method(route::pattern(head.extensions).unwrap_or_else(|| head.uri.path()));
    says_call(head) && is_grpc.unwrap_or_else(is_method)
}

#[inline]
pub(crate) fn says_call(head: &RequestHead<'_>) -> bool {
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

fn is_method(path: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    parts.is_some_and(|(service, method)| {
        service.contains('.')
            && service.split('.').all(is_name)
            && !method.is_empty()
            && !method.contains('/')
    })
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
