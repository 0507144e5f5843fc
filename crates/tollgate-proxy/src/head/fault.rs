//! Why the gateway answers a request instead of an upstream.

use crate::path::PathFault;
use http::StatusCode;

use super::fields::MOST_FIELDS;

/// The reason why no upstream answered a request.
///
/// Clients read the answer, so addresses and causes only appear in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Path(#[from] PathFault),
    #[error("the request must name exactly one valid host")]
    Host,
    #[error("the request target must start with `http://`, `https://` or `/`")]
    Scheme,
    #[error("the request has an invalid or ambiguous body length")]
    Framing,
    #[error("the only supported transfer coding is `chunked`")]
    Coding,
    #[error(
        "the request line or a header is invalid; write a space, `\"`, `<`, `>` or `` ` `` in the \
         URL as %20, %22, %3C, %3E or %60"
    )]
    Head,
    #[error("the URL is too long")]
    LongTarget,
    #[error("the request head has more than 64 KiB or more than {MOST_FIELDS} headers")]
    LongHead,
    #[error("this gateway does not support CONNECT")]
    Connect,
    /// The service would return the headers that proxies have added.
    #[error("this gateway does not answer TRACE")]
    Trace,
    #[error("the request has more than {MOST_FIELDS} header fields or trailers")]
    Fields,
    /// Some services would read the body as a second request.
    #[error("an upgrade request must not have a body")]
    Upgrade,
    #[error("the only supported expectation is `100-continue`")]
    Expectation,
    #[error("the request body is too large")]
    TooLarge,
    #[error("too many request bodies are being read; try again later")]
    NoMemory,
    #[error("the request body did not arrive before the timeout")]
    SlowClient,
    /// The client is usually gone and does not read the answer.
    #[error("the request body is incomplete")]
    BrokenClient,
    #[error("no route matches this host and path")]
    NoRoute,
    #[error("the request loops: its target leads back to this gateway")]
    Loop,
    #[error("too many upgraded connections are open; try again later")]
    Crowded,
    #[error("all connections to the service behind the gateway are in use; try again later")]
    Full,
    #[error("the service behind the gateway refused the request unprocessed; try again later")]
    Refused,
    #[error("the service behind the gateway cannot be reached")]
    Unreachable,
    #[error("the service behind the gateway sent an invalid response")]
    BadAnswer,
    #[error("the connection to the service behind the gateway timed out")]
    ConnectTimeout,
    #[error("the service behind the gateway did not answer before the timeout")]
    AnswerTimeout,
}

impl Fault {
    pub const fn status(self) -> StatusCode {
        self.status_and_code().0
    }

    /// The code for programs.
    pub const fn code(self) -> &'static str {
        self.status_and_code().1
    }

    const fn status_and_code(self) -> (StatusCode, &'static str) {
        match self {
            Self::Path(_) => (StatusCode::BAD_REQUEST, "bad-path"),
            Self::Host => (StatusCode::BAD_REQUEST, "bad-host"),
            Self::Scheme => (StatusCode::BAD_REQUEST, "bad-scheme"),
            Self::Framing => (StatusCode::BAD_REQUEST, "bad-framing"),
            Self::Coding => (StatusCode::NOT_IMPLEMENTED, "unknown-coding"),
            Self::Head => (StatusCode::BAD_REQUEST, "bad-head"),
            Self::LongTarget => (StatusCode::URI_TOO_LONG, "url-too-long"),
            Self::LongHead => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large"),
            Self::Connect => (StatusCode::METHOD_NOT_ALLOWED, "no-tunnels"),
            Self::Trace => (StatusCode::METHOD_NOT_ALLOWED, "no-trace"),
            Self::Fields => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too-many-fields"),
            Self::Upgrade => (StatusCode::BAD_REQUEST, "bad-upgrade"),
            Self::Expectation => (StatusCode::EXPECTATION_FAILED, "unknown-expectation"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
            Self::NoMemory => (StatusCode::SERVICE_UNAVAILABLE, "too-many-bodies"),
            Self::SlowClient => (StatusCode::REQUEST_TIMEOUT, "request-timeout"),
            Self::BrokenClient => (StatusCode::BAD_REQUEST, "request-broken-off"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "no-route"),
            Self::Loop => (StatusCode::LOOP_DETECTED, "loop"),
            Self::Crowded => (StatusCode::SERVICE_UNAVAILABLE, "too-many-tunnels"),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "too-many-connections"),
            Self::Refused => (StatusCode::SERVICE_UNAVAILABLE, "upstream-refused"),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, "upstream-unreachable"),
            Self::BadAnswer => (StatusCode::BAD_GATEWAY, "upstream-invalid"),
            Self::ConnectTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream-connect-timeout"),
            Self::AnswerTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout"),
        }
    }
}
