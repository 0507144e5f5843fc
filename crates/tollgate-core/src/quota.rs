//! Quotas: how many units per window, and how large a burst.

use core::fmt;
use core::time::Duration;

use crate::{Calendar, Micros};

/// An amount per window: `limit` units per `window`, with bursts of up to `burst` units.
///
/// A quota is not checked until a [`Policy`](crate::Policy) is built from it, because the valid
/// values depend on the algorithm.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::Quota;
///
/// let api = Quota::per_minute(100);
/// let search = Quota::per_hour(1_000).burst(50);
/// let odd = Quota::new(3, Duration::from_secs(7));
/// let slow = Quota::every(Duration::from_secs(2)); // one unit every two seconds
/// # let _ = (api, search, odd, slow);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Quota {
    limit: u64,
    window: Duration,
    burst: Option<u64>,
    calendar: Option<Calendar>,
}

impl Quota {
    /// Creates a quota of `limit` units per `window`.
    pub const fn new(limit: u64, window: Duration) -> Self {
        Self { limit, window, burst: None, calendar: None }
    }

    /// Creates a quota of `limit` units per second.
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a quota of `limit` units per 60 seconds.
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a quota of `limit` units per 3600 seconds.
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(3_600))
    }

    /// Creates a quota of `limit` units per 24 hours.
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(86_400))
    }

    /// Creates a quota that allows a single unit per `window`.
    pub const fn every(window: Duration) -> Self {
        Self::new(1, window)
    }

    /// Creates a quota of `limit` units in each calendar period, such as each month in Berlin.
    ///
    /// Only the fixed window counter supports windows of different lengths. Other algorithms reject
    /// such a quota.
    pub fn per_calendar(limit: u64, calendar: Calendar) -> Self {
        Self { calendar: Some(calendar), ..Self::new(limit, calendar.longest().into()) }
    }

    /// Sets the burst: a bucket's capacity, which by default equals `limit`. The window algorithms
    /// have no burst and reject a quota that sets it.
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Returns the units per window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the window. With a calendar, this is its longest period.
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Returns the burst, if one was set.
    pub const fn burst_units(&self) -> Option<u64> {
        self.burst
    }

    /// Returns the calendar that defines the windows, if there is one.
    pub const fn calendar(&self) -> Option<Calendar> {
        self.calendar
    }

    /// Returns the same quota with a different limit.
    pub const fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the same quota without a burst.
    pub const fn without_burst(mut self) -> Self {
        self.burst = None;
        self
    }

    /// Returns the window in words: "60 seconds", or "calendar day in Europe/Berlin".
    pub fn span(&self) -> impl fmt::Display + use<> {
        Span(*self)
    }

    /// Returns the largest number of units that can be taken together: the burst if set, otherwise
    /// the limit.
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(units) => units,
            None => self.limit,
        }
    }
}

struct Span(Quota);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.calendar {
            Some(calendar) => write!(f, "calendar {calendar}"),
            None => Micros::from(self.0.window).fmt(f),
        }
    }
}
