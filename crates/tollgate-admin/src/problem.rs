//! Errors: a problem body (RFC 9457).

use axum::body::Body;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use tollgate::denial::problem_response;
use tollgate::store::StoreError;

pub(super) type Reply = Result<Response, Problem>;

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
        let mut response = problem_response(self.status, None, &self.detail).map(Body::from);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
