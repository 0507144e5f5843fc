//! Errors: a problem body (RFC 9457).

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{StatusCode, header};
use serde_json::json;
use tollgate::store::StoreError;

#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "This needs `Authorization: Bearer` and the token of the admin router.";
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = if error.is_outage() {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::UNPROCESSABLE_ENTITY
        };
        Self::new(status, error.to_string())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        let body = json!({
            "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
        });
        let mut response = (status, format!("{body:#}\n")).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
