//! Why a request may not pass.

use std::fmt;

use http::StatusCode;

/// The address of a heading in the repository.
macro_rules! page {
    ($heading:literal) => {
        concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/http.md#", $heading)
    };
}

/// The reason why a request is denied, with its status, code and problem type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A quota is used up; waiting helps.
    QuotaExceeded,
    /// A penalty blocks the subject; waiting helps.
    Blocked,
    /// The request costs more than a policy ever grants at once; waiting does not help.
    CostExceedsQuota,
    /// The store cannot decide, and a policy fails closed.
    StoreUnavailable,
    /// The request has no key.
    MissingKey,
    /// The client is on the blocklist.
    DeniedSubject,
    /// The service is set up wrongly.
    Misconfigured,
}

impl Reason {
    /// Returns the HTTP status of a denial for this reason.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded | Self::Blocked => StatusCode::TOO_MANY_REQUESTS,
            Self::CostExceedsQuota | Self::MissingKey | Self::DeniedSubject => {
                StatusCode::FORBIDDEN
            }
            Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the word for programs, as in the member `code`. [`problem_type`](Self::problem_type)
    /// ends in it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "quota-exceeded",
            Self::Blocked => "blocked",
            Self::CostExceedsQuota => "cost-exceeds-quota",
            Self::StoreUnavailable => "temporary-reduced-capacity",
            Self::MissingKey => "missing-key",
            Self::DeniedSubject => "denied-subject",
            Self::Misconfigured => "misconfigured",
        }
    }

    /// Returns the `type` of the problem body: a type of the RateLimit draft, or a heading of
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
            Self::DeniedSubject => page!("denied-subject"),
            Self::Misconfigured => page!("misconfigured"),
        }
    }

    /// Returns the `title` of the problem body.
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::Blocked => "Blocked",
            Self::CostExceedsQuota => "Cost Exceeds Quota",
            Self::StoreUnavailable => "Temporary Reduced Capacity",
            Self::MissingKey => "Missing Key",
            Self::DeniedSubject => "Denied Subject",
            Self::Misconfigured => "Misconfigured",
        }
    }

    /// The status of a gRPC call.
    pub(crate) const fn grpc_status(self) -> &'static str {
        match self {
            Self::QuotaExceeded | Self::Blocked => "8",
            // Not 8, on which clients try again: this call never fits.
            Self::CostExceedsQuota | Self::MissingKey | Self::DeniedSubject => "7",
            Self::StoreUnavailable => "14",
            Self::Misconfigured => "13",
        }
    }
}

/// The title.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}
