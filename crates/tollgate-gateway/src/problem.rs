//! The body of the gateway's own errors (RFC 9457).

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

/// An error as `application/problem+json`. `code` is for programs, and `detail` for people.
pub(crate) fn problem(status: StatusCode, code: &str, detail: &str) -> Response<Bytes> {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
