//! Statuses that nginx passes on.

use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};

/// Replaces the statuses that nginx would turn into 500. The configuration of nginx restores them
/// from the header.
pub(crate) fn pass_through_nginx<B>(answer: &mut Response<B>) {
    let status = answer.status();
    answer.headers_mut().insert(STATUS, HeaderValue::from(status.as_u16()));
    if !status.is_success() && status != StatusCode::UNAUTHORIZED {
        *answer.status_mut() = StatusCode::FORBIDDEN;
    }
}

/// Whether a request begins like a check of nginx, which always has this method.
pub(crate) fn is_check(head: &[u8]) -> bool {
    head.starts_with(b"GET /auth-request")
}

pub(super) const AUTH_REQUEST: &str = "/auth-request";

const STATUS: HeaderName = HeaderName::from_static("tollgate-status");
