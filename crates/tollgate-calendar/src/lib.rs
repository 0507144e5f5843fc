//! Calendars for [`Quota::per_calendar`](tollgate_core::Quota::per_calendar): days, weeks and
//! months in a time zone.
//!
//! ```
//! use tollgate_core::{Policy, Quota};
//!
//! let berlin = tollgate_calendar::month("Europe/Berlin")?;
//! let exports = Policy::fixed_window_counter("exports", Quota::per_calendar(500, berlin))?;
//! assert_eq!(
//!     exports.to_string(),
//!     "exports: 500 units per calendar month in Europe/Berlin, fixed_window_counter",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A period starts at the first instant of its first day. This is usually midnight; where clocks
//! skip midnight, it is right after the skipped time. A day has 23, 24 or 25 hours. If a time zone
//! skipped a day, that day has no period. Weeks start on Monday, following ISO 8601.
//!
//! The time zone database is compiled into this crate and the machine's own database is ignored, so
//! replicas running the same build agree. New daylight saving rules need a new build. While old and
//! new builds run side by side, each key finishes its current period.
//!
//! A day calendar takes 0.8 MB per zone and process.

use std::sync::{LazyLock, Mutex, PoisonError};

use jiff::ToSpan;
use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tollgate_core::{Calendar, CalendarError, Timestamp};

/// A calendar period's length: day, week or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first day in a month to the first day in the next month.
    Month,
}

/// Returns the days in a time zone, given by its IANA name such as `Europe/Berlin`.
pub fn day(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Day, zone)
}

/// Returns the weeks in a time zone, from Monday to Monday.
pub fn week(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Week, zone)
}

/// Returns the months in a time zone.
pub fn month(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Month, zone)
}

/// Returns the days, weeks or months in a time zone.
pub fn calendar(unit: Unit, zone: &str) -> Result<Calendar, ZoneError> {
    let unknown = |_| ZoneError::Unknown { zone: zone.to_owned() };
    let zone = ZONES.get(zone).map_err(unknown)?;
    let place = zone.iana_name().unwrap_or("UTC");
    let name = format!("{} in {place}", unit.name());
    // A panic cannot leave the list half changed, because it only grows.
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(calendar) = made.iter().find(|it| it.name() == name) {
        return Ok(*calendar);
    }
    let calendar = Calendar::new(name, starts(unit, &zone))?;
    made.push(calendar);
    Ok(calendar)
}

/// Returns whether a time zone has this name, ignoring case.
pub fn has_zone(zone: &str) -> bool {
    ZONES.get(zone).is_ok()
}

/// Returns all time zone names.
pub fn zones() -> impl Iterator<Item = String> {
    ZONES.available().map(|name| name.as_str().to_owned())
}

impl Unit {
    /// All units.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Returns the unit's name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Returns the first day of each period, starting before the epoch.
    fn first_days(self) -> impl Iterator<Item = Date> {
        // The first date is a Monday, the second the first day of a month.
        let (monday, first) = (date(1969, 12, 29), date(1969, 12, 1));
        match self {
            Self::Day => monday.series(1.day()),
            Self::Week => monday.series(1.week()),
            Self::Month => first.series(1.month()),
        }
    }
}

/// Error returned when a calendar cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// No time zone has this name.
    #[doc(alias = "TG0604")]
    #[error(
        "no time zone is called `{}`: expected an IANA name such as Europe/Berlin [TG0604]",
        .zone.escape_default()
    )]
    Unknown {
        /// The name that was given.
        zone: String,
    },
    /// The periods do not form a valid [`Calendar`].
    #[error(transparent)]
    Calendar(#[from] CalendarError),
}

/// The calendars created by this crate. [`Calendar::named`] does not suffice, because a program can
/// create its own calendar with such a name and different periods.
static MADE: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Returns the first instant of each period, from the Unix epoch to the last representable year.
fn starts(unit: Unit, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
    let starts = unit.first_days().map_while(|day| {
        // Where clocks skip midnight, this is the first instant after the skipped time.
        let start = day.to_zoned_datetime(zone.clone()).ok()?.timestamp().as_microsecond();
        (start < LAST).then_some(start)
    });
    let mut latest = 0;
    // A `Timestamp` cannot be before the epoch. A day that the zone skipped would start at the same
    // instant as the following day, so drop duplicates.
    starts.filter_map(move |start| {
        let start = u64::try_from(start).ok().filter(|start| *start > latest)?;
        latest = start;
        Some(Timestamp::from_micros(start))
    })
}

const LAST: i64 = Timestamp::MAX.as_micros() as i64;
