//! The problem body: `application/problem+json`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use humantime::{Rfc3339Timestamp, format_rfc3339_seconds};
use tollgate_core::{Calendar, Cost, Micros};

use super::json::JsonMembers;
use super::{Denial, Members, QuotaMembers, Reason};

impl Denial<'_> {
    /// Returns a short explanation for people, with advice.
    pub fn detail(&self) -> String {
        Detail(self).to_string()
    }

    /// Returns the problem body as JSON, with these additional members.
    pub fn to_json(&self, members: &Members) -> String {
        let members = members.json();
        let mut json = JsonMembers::with_capacity(512 + members.len());
        json.display("type", self.reason.problem_type());
        json.display("title", self.reason.title());
        json.integer("status", self.status.as_u16());
        // Only the name of a calendar may need escaping.
        if self.calendar().is_some() {
            json.text("detail", &self.detail());
        } else {
            json.display("detail", Detail(self));
        }
        json.display("code", self.reason.code());
        if let Some(quota) = self.quota {
            json.integer("limit", quota.limit);
            json.integer("remaining", quota.remaining);
            if let Some(cost) = self.cost {
                json.integer("cost", cost.get());
            }
            match quota.span() {
                Some(Span::Window(window)) => json.display("window", window),
                Some(span) => json.text("window", &span.to_string()),
                None => json.display("quota_unit", "concurrent-requests"),
            }
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

impl QuotaMembers {
    /// Returns `None` for a concurrency limit.
    const fn span(&self) -> Option<Span> {
        match (self.calendar, self.window) {
            (Some(calendar), _) => Some(Span::Calendar(calendar)),
            (None, Some(window)) => Some(Span::Window(window)),
            (None, None) => None,
        }
    }
}

/// Displays for example "60 seconds" or "calendar day in Europe/Berlin".
enum Span {
    Window(Micros),
    Calendar(Calendar),
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(window) => window.fmt(f),
            Self::Calendar(calendar) => write!(f, "calendar {calendar}"),
        }
    }
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
                let left = quota.remaining;
                match denial.cost.map(Cost::get) {
                    Some(cost) => write!(f, ". This request costs {cost}; {left} remain."),
                    None => write!(f, ", of which {left} remain."),
                }
            }
            (Reason::Blocked, _) => f.write_str(
                "Too many requests were denied or have failed, so the client is blocked for now.",
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
