use std::fmt;

use http::StatusCode;

macro_rules! page {
    ($heading:literal) => {
        concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/http.md#", $heading)
    };
}

/// Why a request is denied. Each reason has a status, a code and a problem type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A quota is used up. Waiting helps.
    QuotaExceeded,
    /// A penalty or an operator blocks the subject. Waiting helps.
    Blocked,
    /// The request costs more than a policy's capacity. Waiting does not help.
    CostExceedsQuota,
    /// The store cannot decide, and a policy fails closed. Or the client's quota cannot be
    /// [looked up](crate::tier::OnLookupFailure::Refuse).
    StoreUnavailable,
    /// The request has no key, or the look-up of quotas
    /// [refuses unknown clients](crate::tier::OnUnknownClient::Refuse).
    MissingKey,
    /// The request identifies its client more than once.
    AmbiguousKey,
    /// The client is on the blocklist.
    DeniedSubject,
    /// The service is misconfigured.
    Misconfigured,
}

impl Reason {
    /// Returns the HTTP status, the code, the title, and the gRPC status.
    const fn terms(self) -> (StatusCode, &'static str, &'static str, &'static str) {
        use StatusCode as Status;
        match self {
            Self::QuotaExceeded => {
                (Status::TOO_MANY_REQUESTS, "quota-exceeded", "Quota Exceeded", "8")
            }
            Self::Blocked => (Status::TOO_MANY_REQUESTS, "blocked", "Blocked", "8"),
            // Clients retry on 8, but this call will never be allowed.
            Self::CostExceedsQuota => {
                (Status::FORBIDDEN, "cost-exceeds-quota", "Cost Exceeds Quota", "7")
            }
            Self::StoreUnavailable => (
                Status::SERVICE_UNAVAILABLE,
                "temporary-reduced-capacity",
                "Temporary Reduced Capacity",
                "14",
            ),
            Self::MissingKey => (Status::FORBIDDEN, "missing-key", "Missing Key", "7"),
            // Bearer tokens have the same status for a repeated token (RFC 6750 §3.1).
            Self::AmbiguousKey => (Status::BAD_REQUEST, "ambiguous-key", "Ambiguous Key", "3"),
            Self::DeniedSubject => (Status::FORBIDDEN, "denied-subject", "Denied Subject", "7"),
            Self::Misconfigured => {
                (Status::INTERNAL_SERVER_ERROR, "misconfigured", "Misconfigured", "13")
            }
        }
    }

    /// Returns the HTTP status for this reason.
    pub const fn status(self) -> StatusCode {
        self.terms().0
    }

    /// Returns the machine-readable code, which is also the body's `code` member.
    /// [`problem_type`](Self::problem_type) ends in it.
    pub const fn code(self) -> &'static str {
        self.terms().1
    }

    /// Returns the `type` of the problem body: a type from the RateLimit draft, or a heading in
    /// `docs/http.md`.
    pub const fn problem_type(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::Blocked => page!("blocked"),
            Self::CostExceedsQuota => page!("cost-exceeds-quota"),
            Self::StoreUnavailable => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::MissingKey => page!("missing-key"),
            Self::AmbiguousKey => page!("ambiguous-key"),
            Self::DeniedSubject => page!("denied-subject"),
            Self::Misconfigured => page!("misconfigured"),
        }
    }

    /// Returns the `title` of the problem body.
    pub const fn title(self) -> &'static str {
        self.terms().2
    }

    pub(crate) const fn grpc_status(self) -> &'static str {
        self.terms().3
    }
}

/// Displays the title.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}
