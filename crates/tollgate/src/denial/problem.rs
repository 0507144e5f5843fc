//! The problem body: `application/problem+json`.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use humantime::{Rfc3339Timestamp, format_rfc3339_seconds};
use tollgate_core::Cost;

use super::members::{Members, Quoted};
use super::{Denial, QuotaMembers, Reason};

impl Denial<'_> {
    /// Returns a short explanation for people, with advice.
    pub fn detail(&self) -> Cow<'_, str> {
        match self.reason {
            Reason::MissingKey => "The request does not identify a client.".into(),
            Reason::DeniedSubject => "Requests of this sender are not accepted.".into(),
            Reason::Misconfigured => {
                "The rate limiter is misconfigured. The server logs the reason.".into()
            }
            _ => self.sentences().into(),
        }
    }

    fn sentences(&self) -> String {
        let mut text = match (self.reason, self.quota) {
            (Reason::CostExceedsQuota, Some(quota)) => format!(
                "The request costs more than the largest grant of {}, so waiting does not help.",
                Units(quota.limit)
            ),
            (Reason::QuotaExceeded, Some(quota)) => {
                let (limit, left) = (Units(quota.limit), quota.remaining);
                let span = quota
                    .span()
                    .map_or_else(|| "at a time".to_owned(), |span| format!("per {span}"));
                match self.cost.map(Cost::get) {
                    Some(cost) => format!(
                        "The quota is {limit} {span}. This request costs {cost}; {left} remain."
                    ),
                    None => format!("The quota is {limit} {span}, of which {left} remain."),
                }
            }
            (Reason::Blocked, _) => {
                "Too many requests were denied or have failed, so the client is blocked for now."
                    .to_owned()
            }
            (Reason::StoreUnavailable, _) => {
                "The rate limiter cannot decide at the moment.".to_owned()
            }
            (reason, _) => format!("{reason}."),
        };
        if let Some(seconds) = self.retry_after_secs {
            let plural = if seconds == 1 { "" } else { "s" };
            let _ = write!(text, " Retry in {seconds} second{plural}.");
        }
        text
    }

    /// Returns the problem body as JSON, with these additional members.
    pub fn to_json(&self, members: &Members) -> String {
        let mut json = String::with_capacity(512 + members.as_json().len());
        // Writing to a string does not fail.
        let _ = self.write_json(&mut json, members);
        json
    }

    fn write_json(&self, json: &mut String, members: &Members) -> fmt::Result {
        let reason = self.reason;
        write!(
            json,
            r#"{{"type":"{}","title":"{}","status":{},"detail":{},"code":"{}""#,
            reason.problem_type(),
            reason.title(),
            self.status.as_u16(),
            Quoted(&self.detail()),
            reason.code(),
        )?;
        if let Some(quota) = self.quota {
            let (limit, remaining) = (quota.limit, quota.remaining);
            write!(json, r#","limit":{limit},"remaining":{remaining}"#)?;
            if let Some(cost) = self.cost {
                write!(json, r#","cost":{}"#, cost.get())?;
            }
            match quota.span() {
                Some(span) => write!(json, r#","window":{}"#, Quoted(&span))?,
                None => json.push_str(r#","quota_unit":"concurrent-requests""#),
            }
        }
        if let Some(seconds) = self.retry_after_secs {
            write!(json, r#","retry_after":{seconds}"#)?;
        }
        if let Some(quota) = self.quota {
            write!(json, r#","reset_at":"{}""#, date(quota.reset_at))?;
        }
        if !self.policies.is_empty() {
            json.push_str(r#","violated-policies":["#);
            for (i, name) in self.policies.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                write!(json, "{comma}{}", Quoted(name))?;
            }
            json.push(']');
        }
        json.push_str(members.as_json());
        json.push('}');
        Ok(())
    }
}

impl QuotaMembers {
    /// Returns for example "60 seconds" or "calendar day in Europe/Berlin". A concurrency limit has
    /// no span.
    fn span(&self) -> Option<String> {
        match self.calendar {
            Some(calendar) => Some(format!("calendar {calendar}")),
            None => self.window.map(|window| window.to_string()),
        }
    }
}

/// Formats the time in UTC, at most the last instant with a four-digit year.
pub(super) fn date(seconds: u64) -> Rfc3339Timestamp {
    const LAST: u64 = 253_402_300_799;
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST)))
}

struct Units(u64);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}
