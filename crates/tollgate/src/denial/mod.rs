//! How the layer responds to a denied request: reason, status, body and headers.
//!
//! By default the body of a denial is a JSON problem (RFC 9457), and gRPC calls get a gRPC status.
//! [`on_denied`](crate::layer::RateLimitLayerBuilder::on_denied) and
//! [`denial_response`](crate::layer::RateLimitLayerBuilder::denial_response) replace it.
//!
//! | reason | status | `type` ends in | gRPC |
//! |---|---|---|---|
//! | [`Reason::QuotaExceeded`] | 429 | `#quota-exceeded` | 8 `RESOURCE_EXHAUSTED` |
//! | [`Reason::Blocked`] | 429 | `#blocked` | 8 `RESOURCE_EXHAUSTED` |
//! | [`Reason::CostExceedsQuota`] | 403 | `#cost-exceeds-quota` | 7 `PERMISSION_DENIED` |
//! | [`Reason::StoreUnavailable`] | 503 | `#temporary-reduced-capacity` | 14 `UNAVAILABLE` |
//! | [`Reason::MissingKey`] | 403 | `#missing-key` | 7 `PERMISSION_DENIED` |
//! | [`Reason::AmbiguousKey`] | 400 | `#ambiguous-key` | 3 `INVALID_ARGUMENT` |
//! | [`Reason::DeniedSubject`] | 403 | `#denied-subject` | 7 `PERMISSION_DENIED` |
//! | [`Reason::Misconfigured`] | 500 | `#misconfigured` | 13 `INTERNAL` |
//!
//! A denial by a [concurrency limit](crate::Policy::concurrent_requests) is a `#quota-exceeded`
//! with `"quota_unit":"concurrent-requests"` and no `window`. Its wait of one second is an
//! estimate.
//!
//! The `RateLimit` headers draft defines the types `#quota-exceeded` and
//! `#temporary-reduced-capacity`.

mod json;
mod members;
mod problem;
mod quota;
mod reason;
mod respond;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use tollgate_core::{Calendar, Cost, Micros, Outcome, Timestamp};

pub use self::members::{MemberError, MemberValue, Members};
pub use self::problem::problem_response;
pub(crate) use self::problem::standings;
use self::quota::QuotaMembers;
pub use self::reason::Reason;
pub(crate) use self::respond::ResponseFromFn;
pub use self::respond::{DenialResponse, IntoDenialResponse, Problem, ResponseFormat};
use crate::head::RequestHead;
use crate::headers::{self, HeaderOptions, PolicyFields, ShownPolicy};

/// Why a request is denied, with the numbers for its response. See
/// [`on_denied`](crate::layer::RateLimitLayerBuilder::on_denied) for examples.
#[derive(Clone, Debug)]
pub struct Denial<'a> {
    reason: Reason,
    status: http::StatusCode,
    policies: Vec<&'a str>,
    quota: Option<QuotaMembers>,
    request: Option<RequestHead<'a>>,
    retry_after: Option<Micros>,
    retry_after_secs: Option<u64>,
}

/// Marks a response that a layer made itself, in the response's extensions.
///
/// Around a client, it distinguishes the layer's own 429 or 503 from the service's. Only layers
/// with [`mark_denials`](crate::layer::RateLimitLayerBuilder::mark_denials) and those from
/// [`for_client`](crate::RateLimitLayer::for_client) set it.
///
/// ```
/// use http::Response;
/// use tollgate::denial::OwnDenial;
///
/// fn was_sent<B>(response: &Response<B>) -> bool {
///     response.extensions().get::<OwnDenial>().is_none()
/// }
/// # assert!(was_sent(&Response::new(())));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnDenial(Reason);

impl OwnDenial {
    pub(crate) const fn of(reason: Reason) -> Self {
        Self(reason)
    }

    /// Returns why the layer denied the request.
    pub const fn reason(self) -> Reason {
        self.0
    }
}

impl<'a> Denial<'a> {
    /// Makes the denial for a verdict. `policies` contains its enforced policies, and `seed`, derived
    /// from the keys, determines the `Retry-After` jitter.
    pub(crate) fn of_verdict(
        decided_at: Timestamp,
        policies: impl IntoIterator<Item = ShownPolicy<'a>>,
        options: &HeaderOptions,
        seed: u64,
    ) -> Self {
        let mut denial = Self::new(Reason::QuotaExceeded);
        let (mut tightest, mut blocks) = (None::<ShownPolicy<'a>>, false);
        for shown @ (fields, decision, _) in policies {
            if decision.outcome == Outcome::Undecided {
                continue;
            }
            if decision.denies() {
                denial.policies.push(fields.policy.name());
            }
            if decision.outcome == Outcome::ExceedsCapacity {
                denial = denial.because(Reason::CostExceedsQuota);
            } else if decision.denies() && fields.is_penalty() {
                blocks = true;
            }
            if tightest.is_none_or(|other| headers::is_tighter(shown, other)) {
                tightest = Some(shown);
            }
        }
        if blocks && denial.reason == Reason::QuotaExceeded {
            denial = denial.because(Reason::Blocked);
        }
        let Some(shown @ (fields, decision, _)) = tightest else {
            return denial;
        };
        // A block has no quota.
        let quota = || QuotaMembers::of(decided_at, shown);
        denial.quota = (denial.reason != Reason::Blocked).then(quota);
        // The tightest policy has the longest wait. Omit it if waiting does not help.
        let waits = matches!(denial.reason, Reason::QuotaExceeded | Reason::Blocked);
        if let (true, Some(wait)) = (waits, fields.wait(decision)) {
            let (jitter, window) = (options.jitter_limit(), fields.policy.window());
            let seconds = headers::seconds_to_wait(wait, jitter, seed, decided_at, window);
            denial.retry_after = Some(wait);
            denial.retry_after_secs = Some(seconds);
        }
        denial
    }

    /// The store cannot decide, and these policies reject such requests. The store is called again
    /// after `next_probe`.
    pub(crate) fn store_unavailable(
        policies: impl IntoIterator<Item = &'a PolicyFields>,
        next_probe: Micros,
    ) -> Self {
        let policies = policies.into_iter().map(|fields| fields.policy.name()).collect();
        Self { policies, ..Self::new(Reason::StoreUnavailable).lasting(next_probe) }
    }

    /// Makes a denial for a limit that the program enforces without a layer. `wait` is the time
    /// until the request would be allowed.
    pub fn quota_exceeded(policy: &'a str, wait: Micros) -> Self {
        Self { policies: vec![policy], ..Self::new(Reason::QuotaExceeded).lasting(wait) }
    }

    /// Makes the denial for a request without a key.
    pub const fn missing_key() -> Self {
        Self::new(Reason::MissingKey)
    }

    /// Makes the denial for a request that identifies its client more than once.
    pub const fn ambiguous_key() -> Self {
        Self::new(Reason::AmbiguousKey)
    }

    /// Makes the denial for a client on the blocklist.
    pub const fn denied_subject() -> Self {
        Self::new(Reason::DeniedSubject)
    }

    /// Makes the denial for a misconfigured service. Only the log contains the details.
    pub const fn misconfigured() -> Self {
        Self::new(Reason::Misconfigured)
    }

    pub(crate) fn of_request(self, request: RequestHead<'a>) -> Self {
        Self { request: Some(request), ..self }
    }

    /// Adds a wait without jitter.
    fn lasting(self, wait: Micros) -> Self {
        let (no_jitter, any_time) = (Duration::ZERO, Timestamp::EPOCH);
        let seconds = headers::seconds_to_wait(wait, no_jitter, 0, any_time, wait);
        Self { retry_after: Some(wait), retry_after_secs: Some(seconds), ..self }
    }

    fn because(self, reason: Reason) -> Self {
        Self { reason, status: reason.status(), ..self }
    }

    const fn new(reason: Reason) -> Self {
        Self {
            reason,
            status: reason.status(),
            policies: Vec::new(),
            quota: None,
            request: None,
            retry_after: None,
            retry_after_secs: None,
        }
    }

    /// Returns why the request is denied.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the HTTP status.
    pub const fn status(&self) -> http::StatusCode {
        self.status
    }

    /// Returns the same denial with another status in response and body, for example 401 if the
    /// credentials are missing:
    ///
    /// ```
    /// use http::header::WWW_AUTHENTICATE;
    /// use http::{HeaderValue, StatusCode};
    /// use tollgate::denial::{Denial, Members, Reason};
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

    /// Returns the names of the policies that deny the request, in the order of the limits.
    pub fn policies(&self) -> &[&'a str] {
        &self.policies
    }

    /// Returns the capacity of the denying policy with the longest wait. The other quota numbers
    /// also describe this policy.
    pub fn limit(&self) -> Option<u64> {
        self.quota.map(|quota| quota.limit)
    }

    /// Returns the request cost under the denying policy.
    pub const fn cost(&self) -> Option<Cost> {
        match self.quota {
            Some(quota) => Some(quota.cost),
            None => None,
        }
    }

    /// Returns the head of the denied request, or `None` if the program made the denial.
    pub const fn request(&self) -> Option<&RequestHead<'a>> {
        self.request.as_ref()
    }

    /// Returns the denying policy's remaining units.
    pub fn remaining(&self) -> Option<u64> {
        self.quota.map(|quota| quota.remaining)
    }

    /// Returns the time to refill the full quota, or the longest period for a calendar. Returns
    /// `None` for a concurrency limit.
    pub fn window(&self) -> Option<Micros> {
        self.quota.and_then(|quota| quota.window)
    }

    /// Returns whether the denying policy is a concurrency limit.
    pub fn is_in_flight(&self) -> bool {
        self.quota.is_some_and(|quota| quota.window.is_none())
    }

    /// Returns the calendar of the denying policy's quota.
    pub fn calendar(&self) -> Option<Calendar> {
        self.quota.and_then(|quota| quota.calendar)
    }

    /// Returns the time at which the quota is full again, in Unix seconds, rounded up.
    pub fn reset_at(&self) -> Option<u64> {
        self.quota.map(|quota| quota.reset_at)
    }

    /// Returns the exact wait until the request is allowed if no other request is charged, or
    /// `None` if waiting does not help. For a concurrency limit it is an estimate of one second,
    /// and for a [lease](crate::Policy::with_lease) it is not exact.
    pub const fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }

    /// Returns the wait sent in `Retry-After`: in seconds, rounded up, with jitter.
    pub const fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after_secs
    }

    /// Adds `Retry-After` and `Cache-Control: no-store`.
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
