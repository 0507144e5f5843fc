//! The gateway's own answers, if no upstream answers: `application/problem+json`.

use std::error::Error;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::body::{Body, BodyError};
use super::entrance::MOST_FIELDS;
use super::path::PathFault;
use super::pool::SendError;

/// The reason why no upstream answered a request.
///
/// Clients read the answer, so addresses and causes go only to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The path has no normal form.
    #[error(transparent)]
    Path(#[from] PathFault),
    /// The host of the request is missing or ambiguous.
    #[error("the request must name one host, in one way")]
    Host,
    /// The end of the request is ambiguous.
    #[error("the length of the body is given in more than one way")]
    Framing,
    /// The body has an unknown transfer coding.
    #[error("the only transfer coding that is understood is `chunked`")]
    Coding,
    /// The gateway does not support CONNECT.
    #[error("this gateway forwards requests and opens no tunnels")]
    Connect,
    /// The service would return the headers that proxies have added.
    #[error("this gateway does not answer TRACE")]
    Trace,
    /// There are too many headers or trailers.
    #[error("the request has more than {MOST_FIELDS} header fields or trailers")]
    Fields,
    /// Some services would read the body as a second request.
    #[error("a request that asks to change the protocol may have no body")]
    Upgrade,
    /// The header `Expect` has an unknown value.
    #[error("the only expectation that is met is `100-continue`")]
    Expectation,
    /// The body is larger than allowed.
    #[error("the body of the request is too large")]
    TooLarge,
    /// The client stopped sending.
    #[error("the body of the request did not come in time")]
    SlowClient,
    /// The client's body broke off. The client is usually gone and does not read the answer.
    #[error("the body of the request broke off")]
    BrokenClient,
    /// No route matches the request.
    #[error("no route leads from this host and path to a service")]
    NoRoute,
    /// The target leads back here.
    #[error("the request has passed this gateway before: its target leads back to it")]
    Loop,
    /// The limit on upgraded connections is reached.
    #[error("too many upgraded connections are open; try again later")]
    Crowded,
    /// The limit on connections to the upstream is reached.
    #[error("all connections to the service behind the gateway are in use; try again later")]
    Full,
    /// The upstream could not be reached.
    #[error("the service behind the gateway cannot be reached")]
    Unreachable,
    /// The upstream broke off, or did not speak HTTP.
    #[error("the service behind the gateway gave no valid answer")]
    BadAnswer,
    /// Connecting to the upstream took too long.
    #[error("the service behind the gateway could not be reached in time")]
    ConnectTimeout,
    /// The upstream took too long to answer.
    #[error("the service behind the gateway did not answer in time")]
    AnswerTimeout,
}

impl Fault {
    /// The status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Path(_) | Self::Host | Self::Framing | Self::Upgrade | Self::BrokenClient => {
                StatusCode::BAD_REQUEST
            }
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::Connect | Self::Trace => StatusCode::METHOD_NOT_ALLOWED,
            Self::Fields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowClient => StatusCode::REQUEST_TIMEOUT,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Crowded | Self::Full => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable | Self::BadAnswer => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout | Self::AnswerTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Whether the service has received the request and its outcome is unknown.
    pub const fn hides_an_outcome(self) -> bool {
        matches!(self, Self::BadAnswer | Self::AnswerTimeout)
    }

    /// The code of the fault, for programs.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Path(_) => "bad-path",
            Self::Host => "bad-host",
            Self::Framing => "bad-framing",
            Self::Coding => "unknown-coding",
            Self::Connect => "no-tunnels",
            Self::Trace => "no-trace",
            Self::Fields => "too-many-fields",
            Self::Upgrade => "bad-upgrade",
            Self::Expectation => "unknown-expectation",
            Self::TooLarge => "body-too-large",
            Self::SlowClient => "request-timeout",
            Self::BrokenClient => "request-broken-off",
            Self::NoRoute => "no-route",
            Self::Loop => "loop",
            Self::Crowded => "too-many-tunnels",
            Self::Full => "too-many-connections",
            Self::Unreachable => "upstream-unreachable",
            Self::BadAnswer => "upstream-invalid",
            Self::ConnectTimeout => "upstream-connect-timeout",
            Self::AnswerTimeout => "upstream-timeout",
        }
    }

    /// The fault of a request that could not be sent or got no valid response.
    pub(super) fn of(error: &SendError) -> Self {
        let error = match error {
            SendError::Full => return Self::Full,
            SendError::ConnectTimeout(_) => return Self::ConnectTimeout,
            SendError::Connect(_) => return Self::Unreachable,
            SendError::Silence(_) => return Self::AnswerTimeout,
            SendError::Http(error) => error,
        };
        match error.source().and_then(|cause| cause.downcast_ref()) {
            Some(BodyError::Idle(_)) => Self::SlowClient,
            Some(BodyError::Broken(_) | BodyError::Unwanted) => Self::BrokenClient,
            Some(BodyError::Trailers) => Self::Fields,
            Some(BodyError::TooLarge) => Self::TooLarge,
            None => Self::BadAnswer,
        }
    }

    /// The answer, with the fault among its extensions.
    pub fn response(self) -> Response<Body> {
        let status = self.status();
        let body = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": format!("{self}."),
            "code": self.code(),
        });
        let mut response = Response::new(Body::from(Bytes::from(body.to_string())));
        *response.status_mut() = status;
        response.extensions_mut().insert(self);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
