//! What a request gets that no upstream answered: `application/problem+json`.

use std::error::Error;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::body::{Body, BodyError};
use super::entrance::MOST_FIELDS;
use super::path::PathFault;
use super::pool::SendError;

/// Why a request was not answered by an upstream.
///
/// What stands in an answer is meant for clients; addresses and causes go to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The path has no normal form.
    #[error(transparent)]
    Path(#[from] PathFault),
    /// It is not clear for whom the request is.
    #[error("the request must name one host, in one way")]
    Host,
    /// It is not clear where the request ends.
    #[error("the length of the body is given in more than one way")]
    Framing,
    /// The body is encoded for the connection in a way that we do not know.
    #[error("the only transfer coding that is understood is `chunked`")]
    Coding,
    /// A gateway opens no tunnels.
    #[error("this gateway forwards requests and opens no tunnels")]
    Connect,
    /// The service would return the fields that proxies have added.
    #[error("this gateway does not answer TRACE")]
    Trace,
    /// There are too many fields.
    #[error("the request has more than {MOST_FIELDS} header fields or trailers")]
    Fields,
    /// Some services would read the body as a second request.
    #[error("a request that asks to change the protocol may have no body")]
    Upgrade,
    /// Something is expected that we do not know.
    #[error("the only expectation that is met is `100-continue`")]
    Expectation,
    /// The body is larger than it may be.
    #[error("the body of the request is too large")]
    TooLarge,
    /// The client stopped sending.
    #[error("the body of the request did not come in time")]
    SlowClient,
    /// The client's body broke off, so that nobody will read this.
    #[error("the body of the request broke off")]
    BrokenClient,
    /// No route is for this request.
    #[error("no route leads from this host and path to a service")]
    NoRoute,
    /// The target leads back here.
    #[error("the request has passed this gateway before: its target leads back to it")]
    Loop,
    /// As many connections have been upgraded as may be.
    #[error("too many upgraded connections are open; try again later")]
    Crowded,
    /// The upstream has as many connections as it may have.
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

    /// A word for programs.
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

    /// What went wrong with a request that was sent.
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
