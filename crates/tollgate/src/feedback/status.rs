//! Whether a response is a denial, and why.

use http::{HeaderMap, StatusCode};

use super::text;

pub(super) fn denies(
    status: StatusCode,
    headers: &HeaderMap,
    has_wait: bool,
    is_used_up: bool,
) -> bool {
    match status.as_u16() {
        429 => true,
        403 if has_wait || is_used_up => true,
        503 if has_wait || headers.contains_key("x-amz-request-id") => true,
        529 if has_wait => true,
        200 => match text(headers, "grpc-status") {
            Some(RESOURCE_EXHAUSTED) => true,
            Some(UNAVAILABLE) => has_wait,
            _ => false,
        },
        400.. => is_aws_throttling(headers),
        _ => false,
    }
}

const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";

fn is_aws_throttling(headers: &HeaderMap) -> bool {
    // `ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/`
    let code = text(headers, AWS_ERROR).and_then(|error| error.split(':').next());
    code.is_some_and(|code| AWS_THROTTLING.contains(&code))
}

const AWS_ERROR: &str = "x-amzn-errortype";

/// The error codes for which AWS's SDKs slow down.
const AWS_THROTTLING: [&str; 14] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
];

pub(super) fn should_retry(headers: &HeaderMap) -> Option<bool> {
    let value = text(headers, "x-should-retry").or_else(|| text(headers, "stripe-should-retry"));
    value.and_then(|value| value.parse().ok())
}

/// The headers that contain a reason, or the limit's scope.
const REASONS: [&str; 5] = [
    "stripe-rate-limited-reason",
    "x-ratelimit-reason",
    "ratelimit-reason",
    "x-ratelimit-scope",
    AWS_ERROR,
];

const MAX_REASON_LEN: usize = 128;

pub(super) fn reason(headers: &HeaderMap) -> Option<Box<str>> {
    let reason = REASONS.iter().find_map(|name| text(headers, name))?;
    (1..=MAX_REASON_LEN).contains(&reason.len()).then(|| reason.into())
}
