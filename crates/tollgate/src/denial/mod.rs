//! What a request gets that may not pass.
//!
//! | reason | status | `type` ends in | gRPC |
//! |---|---|---|---|
//! | [`Reason::QuotaExceeded`] | 429 | `#quota-exceeded` | 8 `RESOURCE_EXHAUSTED` |
//! | [`Reason::Blocked`] | 429 | `#blocked` | 8 `RESOURCE_EXHAUSTED` |
//! | [`Reason::CostExceedsQuota`] | 403 | `#cost-exceeds-quota` | 7 `PERMISSION_DENIED` |
//! | [`Reason::StoreUnavailable`] | 503 | `#temporary-reduced-capacity` | 14 `UNAVAILABLE` |
//! | [`Reason::MissingKey`] | 403 | `#missing-key` | 7 `PERMISSION_DENIED` |
//! | [`Reason::DeniedSubject`] | 403 | `#denied-subject` | 7 `PERMISSION_DENIED` |
//! | [`Reason::Misconfigured`] | 500 | `#misconfigured` | 13 `INTERNAL` |
//!
//! What a limit of [concurrent requests](crate::Policy::concurrent_requests) denies is a
//! `#quota-exceeded` with `"quota_unit":"concurrent-requests"` and no `window`. Its wait of one
//! second is a guess: no one knows when a request in flight will end.
//!
//! The body is a problem (RFC 9457). The types of the first and the third are those of
//! the draft that also defines the `RateLimit` fields.

mod date;
mod members;
mod problem;
mod reason;
mod respond;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use tollgate_core::{Calendar, Cost, Micros, Outcome, Timestamp};

pub use self::members::{MemberError, MemberValue, Members};
pub use self::reason::Reason;
pub(crate) use self::respond::FromFn;
pub use self::respond::{DenialResponse, IntoDenialResponse, Problem, ResponseFormat};
use crate::RequestHead;
use crate::headers::{self, HeaderOptions, PolicyFields, Row};

/// Why a request may not pass, and all that its answer says about it.
///
/// ```
/// use tollgate::Denial;
/// use tollgate::denial::DenialResponse;
///
/// fn plain(denial: &Denial<'_>) -> http::Response<bytes::Bytes> {
///     let mut response = http::Response::new(denial.detail().into_owned().into());
///     *response.status_mut() = denial.status();
///     response
/// }
/// # fn check(_: impl DenialResponse) {}
/// # check(plain);
/// ```
#[derive(Clone, Debug)]
pub struct Denial<'a> {
    reason: Reason,
    status: http::StatusCode,
    policies: Vec<&'a str>,
    /// The policy whose numbers are shown.
    tightest: Option<&'a str>,
    shown: Option<Shown>,
    cost: Option<Cost>,
    request: Option<RequestHead<'a>>,
    retry_after: Option<Micros>,
    retry_after_secs: Option<u64>,
}

/// The numbers of one policy, the same as in the `X-RateLimit` fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    limit: u64,
    remaining: u64,
    /// None of what counts in flight.
    window: Option<Micros>,
    calendar: Option<Calendar>,
    reset_at: u64,
}

impl<'a> Denial<'a> {
    /// The denial of a verdict that came at `decided_at`; `rows` are its enforced
    /// policies, and `seed` stands for the key in the jitter of `Retry-After`.
    pub(crate) fn of_verdict(
        decided_at: Timestamp,
        rows: impl IntoIterator<Item = Row<'a>>,
        options: &HeaderOptions,
        seed: u64,
    ) -> Self {
        let mut denial = Self::new(Reason::QuotaExceeded);
        let (mut tightest, mut blocks) = (None::<Row<'a>>, false);
        for row @ (fields, decision) in rows {
            if decision.outcome == Outcome::Undecided {
                continue;
            }
            if decision.denies() {
                denial.policies.push(fields.policy().name());
            }
            if decision.outcome == Outcome::ExceedsCapacity {
                denial = denial.because(Reason::CostExceedsQuota);
            } else if decision.denies() && fields.is_penalty() {
                blocks = true;
            }
            if tightest.is_none_or(|other| headers::is_tighter(row, other)) {
                tightest = Some(row);
            }
        }
        if blocks && denial.reason == Reason::QuotaExceeded {
            denial = denial.because(Reason::Blocked);
        }
        let Some(row @ (fields, decision)) = tightest else {
            return denial;
        };
        denial.tightest = Some(fields.policy().name());
        // A block has no quota to tell of.
        denial.shown = (denial.reason != Reason::Blocked).then(|| Shown {
            limit: decision.limit,
            remaining: decision.remaining,
            window: fields.window(),
            calendar: fields.policy().quota().calendar(),
            reset_at: headers::reset_at(decided_at, row),
        });
        // The tightest waits longest; but where one can never pass, no wait helps.
        let waits = matches!(denial.reason, Reason::QuotaExceeded | Reason::Blocked);
        if let (true, Some(wait)) = (waits, fields.wait(decision)) {
            let (jitter, window) = (options.jitter_limit(), fields.policy().window());
            let seconds = headers::seconds_to_wait(wait, jitter, seed, decided_at, window);
            denial.retry_after = Some(wait);
            denial.retry_after_secs = Some(seconds);
        }
        denial
    }

    /// The store cannot decide, and these policies refuse what is not decided. The
    /// store is asked again in `next_probe`.
    pub(crate) fn store_unavailable(
        policies: impl IntoIterator<Item = &'a PolicyFields>,
        next_probe: Micros,
    ) -> Self {
        let (none, any) = (Duration::ZERO, Timestamp::EPOCH);
        let seconds = headers::seconds_to_wait(next_probe, none, 0, any, next_probe);
        Self {
            policies: policies.into_iter().map(|fields| fields.policy().name()).collect(),
            retry_after: Some(next_probe),
            retry_after_secs: Some(seconds),
            ..Self::new(Reason::StoreUnavailable)
        }
    }

    /// The request does not say whose quota it uses.
    pub const fn missing_key() -> Self {
        Self::new(Reason::MissingKey)
    }

    /// Requests of this sender are not accepted.
    pub const fn denied_subject() -> Self {
        Self::new(Reason::DeniedSubject)
    }

    /// The layer lacks something that the service has to provide. The response does not say what:
    /// that is for the operator, and belongs into the log.
    pub const fn misconfigured() -> Self {
        Self::new(Reason::Misconfigured)
    }

    /// The same denial of this request, with its cost under the policy whose numbers are shown.
    pub(crate) fn of_request(
        mut self,
        request: RequestHead<'a>,
        cost: impl FnOnce(&str) -> Option<Cost>,
    ) -> Self {
        self.request = Some(request);
        self.cost = self.shown.and(self.tightest).and_then(cost);
        self
    }

    fn because(self, reason: Reason) -> Self {
        Self { reason, status: reason.status(), ..self }
    }

    const fn new(reason: Reason) -> Self {
        Self {
            reason,
            status: reason.status(),
            policies: Vec::new(),
            tightest: None,
            shown: None,
            cost: None,
            request: None,
            retry_after: None,
            retry_after_secs: None,
        }
    }

    /// Why the request may not pass.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The status of the response: that of the reason, unless another was chosen.
    pub const fn status(&self) -> http::StatusCode {
        self.status
    }

    /// The same with another status, in the response and in its body. A response that is made of
    /// a clone says 401 to those who have not said who they are, for instance:
    ///
    /// ```
    /// use http::header::WWW_AUTHENTICATE;
    /// use http::{HeaderValue, StatusCode};
    /// use tollgate::Denial;
    /// use tollgate::denial::{Members, Reason};
    ///
    /// fn unauthorized(denial: &Denial<'_>) -> http::Response<bytes::Bytes> {
    ///     if denial.reason() != Reason::MissingKey {
    ///         return denial.to_problem(&Members::new());
    ///     }
    ///     let denial = denial.clone().with_status(StatusCode::UNAUTHORIZED);
    ///     let mut response = denial.to_problem(&Members::new());
    ///     response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    ///     response
    /// }
    /// # fn check(_: impl tollgate::denial::DenialResponse) {}
    /// # check(unauthorized);
    /// ```
    #[must_use]
    pub const fn with_status(mut self, status: http::StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The names of the policies that refuse, in their order.
    pub fn policies(&self) -> &[&'a str] {
        &self.policies
    }

    /// The most units granted at once, by the violated policy with the longest wait.
    /// The next three are of the same policy.
    pub fn limit(&self) -> Option<u64> {
        self.shown.map(|shown| shown.limit)
    }

    /// The cost of the request under that policy.
    pub const fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// The head of the request. A denial that a program made itself has none.
    pub const fn request(&self) -> Option<&RequestHead<'a>> {
        self.request.as_ref()
    }

    /// The units left.
    pub fn remaining(&self) -> Option<u64> {
        self.shown.map(|shown| shown.remaining)
    }

    /// The time in which the whole limit comes back; with a calendar at the longest. There is
    /// none of what counts in flight.
    pub fn window(&self) -> Option<Micros> {
        self.shown.and_then(|shown| shown.window)
    }

    /// Whether the policy limits how much is in flight.
    pub fn is_in_flight(&self) -> bool {
        self.shown.is_some_and(|shown| shown.window.is_none())
    }

    /// The calendar whose periods are the windows, where there is one.
    pub fn calendar(&self) -> Option<Calendar> {
        self.shown.and_then(|shown| shown.calendar)
    }

    /// When the quota is whole again, in Unix seconds, rounded up.
    pub fn reset_at(&self) -> Option<u64> {
        self.shown.map(|shown| shown.reset_at)
    }

    /// The exact wait until the request can pass, if nothing else is charged meanwhile; none if
    /// waiting does not help. It is not exact for a concurrency limit, where it is a guess of one
    /// second, nor for a policy that is [leased](crate::Policy::with_lease).
    pub const fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }

    /// The wait as `Retry-After` has it: in seconds, rounded up, with jitter.
    pub const fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after_secs
    }

    /// Adds `Retry-After` and `Cache-Control: no-store`, which every denial has,
    /// whatever made its response.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_secs {
            headers::write_retry_after(headers, seconds);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.reason == Reason::StoreUnavailable {
            headers.insert(headers::X_RATELIMIT_REASON, headers::REDUCED);
        }
    }
}
