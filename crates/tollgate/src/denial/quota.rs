//! A denying policy's numbers in a problem body.

use std::fmt;

use tollgate_core::{Calendar, Cost, Micros, Timestamp};

use super::json::JsonMembers;
use crate::headers::{self, ShownPolicy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuotaMembers {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// `None` for a concurrency limit.
    pub(super) window: Option<Micros>,
    pub(super) calendar: Option<Calendar>,
    pub(super) reset_at: u64,
    pub(super) cost: Cost,
}

impl QuotaMembers {
    pub(super) fn of(decided_at: Timestamp, shown: ShownPolicy<'_>) -> Self {
        let (fields, decision, cost) = shown;
        Self {
            limit: decision.limit,
            remaining: decision.remaining,
            window: fields.window(),
            calendar: fields.policy.quota().calendar(),
            reset_at: headers::reset_at(decided_at, shown),
            cost,
        }
    }

    pub(super) fn write(&self, json: &mut JsonMembers) {
        json.integer("limit", self.limit);
        json.integer("remaining", self.remaining);
        match self.span() {
            Some(Span::Window(window)) => json.display("window", window),
            Some(span) => json.text("window", &span.to_string()),
            None => json.literal("quota_unit", "concurrent-requests"),
        }
    }

    /// Returns `None` for a concurrency limit.
    pub(super) const fn span(&self) -> Option<Span> {
        match (self.calendar, self.window) {
            (Some(calendar), _) => Some(Span::Calendar(calendar)),
            (None, Some(window)) => Some(Span::Window(window)),
            (None, None) => None,
        }
    }
}

/// Displays for example "60 seconds" or "calendar day in Europe/Berlin".
pub(super) enum Span {
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
