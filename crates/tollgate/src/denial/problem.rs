//! The problem body (RFC 9457): `application/problem+json`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use humantime::{Rfc3339Timestamp, format_rfc3339_seconds};
use tollgate_core::Timestamp;

use super::json::JsonMembers;
use super::quota::QuotaMembers;
use super::{Denial, Members, Reason};
use crate::headers::ShownPolicy;

/// Makes an error response for other causes than a denial, with the same form of body. `detail` is
/// for people, and `code` is for programs.
///
/// ```
/// use http::StatusCode;
/// use tollgate::denial::problem_response;
///
/// let response = problem_response(StatusCode::NOT_FOUND, None, "Try /items.");
/// let body = r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"Try /items."}"#;
/// assert_eq!(response.body(), body);
/// ```
pub fn problem_response(status: StatusCode, code: Option<&str>, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let mut json = begin("about:blank", title, status, 128 + detail.len());
    json.text("detail", detail);
    if let Some(code) = code {
        json.text("code", code);
    }
    let mut response = respond(status, json.into_object(), HeaderMap::with_capacity(8));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn begin(problem_type: &str, title: &str, status: StatusCode, bytes: usize) -> JsonMembers {
    let mut json = JsonMembers::with_capacity(bytes);
    json.literal("type", problem_type);
    json.literal("title", title);
    json.integer("status", status.as_u16());
    json
}

fn respond(status: StatusCode, json: String, headers: HeaderMap) -> Response<Bytes> {
    let mut response = Response::new(json.into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let json = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

impl Denial<'_> {
    /// Makes the default response to an HTTP request: a problem body with these members.
    pub fn to_problem(&self, members: &Members) -> Response<Bytes> {
        respond(self.status, self.to_json(members), HeaderMap::with_capacity(HEADERS))
    }

    /// Returns a short explanation for people, with advice.
    pub fn detail(&self) -> String {
        Detail(self).to_string()
    }

    /// Returns the problem body as JSON, with these additional members.
    pub fn to_json(&self, members: &Members) -> String {
        let members = members.json();
        let (problem_type, title) = (self.reason.problem_type(), self.reason.title());
        let mut json = begin(problem_type, title, self.status, 512 + members.len());
        // Only the name of a calendar may need escaping.
        if self.calendar().is_some() {
            json.text("detail", &self.detail());
        } else {
            json.display("detail", Detail(self));
        }
        json.literal("code", self.reason.code());
        if let Some(quota) = self.quota {
            json.integer("cost", quota.cost.get());
            quota.write(&mut json);
        }
        if let Some(seconds) = self.retry_after_secs {
            json.integer("retry_after", seconds);
        }
        if let Some(quota) = self.quota {
            json.display("reset_at", date(quota.reset_at));
        }
        if !self.policies.is_empty() {
            json.texts("violated-policies", &self.policies);
        }
        json.extend(members);
        json.into_object()
    }
}

/// Returns the body of a [`Status`](crate::layer::Status): each policy with the time of its decision
/// and the requests to which it applies, as the members of a problem.
pub(crate) fn standings<'a>(
    policies: impl Iterator<Item = (Timestamp, ShownPolicy<'a>, &'a [String])>,
) -> String {
    let standing = |(decided_at, shown, applies_to): (Timestamp, ShownPolicy<'a>, &[String])| {
        let ((fields, decision, _), quota) = (shown, QuotaMembers::of(decided_at, shown));
        let mut json = JsonMembers::with_capacity(160);
        json.text("policy", fields.policy.name());
        if !applies_to.is_empty() {
            json.texts("applies_to", &applies_to.iter().map(String::as_str).collect::<Vec<_>>());
        }
        if fields.is_penalty() {
            // A penalty is shown only while it blocks, and a block has no quota.
            json.flag("blocked", true);
        } else {
            quota.write(&mut json);
        }
        if let Some(wait) = fields.wait(decision) {
            json.integer("retry_after", wait.as_secs_ceil().max(1));
        }
        if !fields.is_penalty() && quota.window.is_some() {
            json.display("reset_at", date(quota.reset_at));
        }
        json.into_object()
    };
    let mut json = JsonMembers::new();
    json.list("limits", policies.map(standing));
    json.into_object()
}

/// Formats the time in UTC, at most the last instant with a four-digit year.
pub(super) fn date(seconds: u64) -> Rfc3339Timestamp {
    const LAST: u64 = 253_402_300_799;
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST)))
}

struct Detail<'a>(&'a Denial<'a>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(denial) = self;
        match (denial.reason, denial.quota) {
            (Reason::MissingKey, _) => {
                return f.write_str("The request does not identify a client.");
            }
            (Reason::AmbiguousKey, _) => {
                return f.write_str(
                    "The request identifies its client more than once. Send the key or token once.",
                );
            }
            (Reason::DeniedSubject, _) => {
                return f.write_str("Requests of this sender are not accepted.");
            }
            (Reason::Misconfigured, _) => {
                return f
                    .write_str("The rate limiter is misconfigured. The server logs the reason.");
            }
            (Reason::CostExceedsQuota, Some(quota)) => write!(
                f,
                "The request costs more than the largest grant of {}, so waiting does not help.",
                Units(quota.limit)
            ),
            (Reason::QuotaExceeded, Some(quota)) => {
                write!(f, "The quota is {} ", Units(quota.limit))?;
                match quota.span() {
                    Some(span) => write!(f, "per {span}")?,
                    None => f.write_str("at a time")?,
                }
                let (cost, left) = (quota.cost.get(), quota.remaining);
                write!(f, ". This request costs {cost}; {left} remain.")
            }
            (Reason::Blocked, _) => f.write_str(
                "The client is blocked for now: too many of its requests were denied or have failed, \
                 or an operator has blocked it.",
            ),
            (Reason::StoreUnavailable, _) => {
                f.write_str("The rate limiter cannot decide at the moment.")
            }
            (reason, _) => write!(f, "{reason}."),
        }?;
        match denial.retry_after_secs {
            Some(1) => f.write_str(" Retry in 1 second."),
            Some(seconds) => write!(f, " Retry in {seconds} seconds."),
            None => Ok(()),
        }
    }
}

struct Units(u64);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Enough for the layer's headers, the server's `Date` and `Content-Length`, and a few of the
/// program, so that the map does not grow.
const HEADERS: usize = 12;
