//! The gateway's own answers, and the source of each answer.

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{Extensions, Response, StatusCode};
use tollgate::denial::problem_response;

use tollgate_proxy::Fault;

/// The answer to a request that no upstream has answered.
pub(crate) fn answer_to<B: From<Bytes>>(fault: Fault) -> Response<B> {
    let mut response =
        problem_response(fault.status(), Some(fault.code()), &format!("{fault}.")).map(B::from);
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
    }
    response.extensions_mut().insert(AnsweredBy::Gateway(fault));
    response
}

/// An answer's source, stored in the response's extensions unless it is an upstream.
#[derive(Clone, Debug)]
pub(crate) enum AnsweredBy {
    /// A limiter, before any upstream.
    Denial {
        code: &'static str,
        policies: Vec<String>,
    },
    Gateway(Fault),
}

impl AnsweredBy {
    pub(crate) fn of(response: &Extensions) -> Option<&Self> {
        response.get()
    }

    /// Whether an upstream may have executed the request, although its answer is unknown.
    pub(crate) const fn hides_an_outcome(&self) -> bool {
        matches!(self, Self::Gateway(Fault::BadAnswer | Fault::AnswerTimeout))
    }
}

/// The methods that the gateway forwards, apart from extensions.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
