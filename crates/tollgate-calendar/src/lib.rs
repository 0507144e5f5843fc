//! Calendars for [`Quota::per_calendar`](tollgate_core::Quota::per_calendar): the days,
//! weeks and months of a time zone.
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
//! A period begins at the first instant of its first day. This is usually midnight; where clocks
//! skip midnight, the period begins right after the skipped time. A day has 23, 24 or 25
//! hours. A day that a time zone skipped has no period. A week begins on Monday, as in ISO 8601.
//!
//! The time zone database is compiled into this crate, and the machine's own database is
//! ignored, so replicas of one build agree. New daylight saving rules need a new build. While
//! old and new builds run side by side, each key finishes its current period.
//!
//! A calendar of days takes 0.8 MB, once per zone and process.

use std::sync::{LazyLock, Mutex, PoisonError};

use jiff::ToSpan;
use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tollgate_core::{Calendar, CalendarError, Timestamp};

/// The unit of a calendar: day, week or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first day of a month to the first day of the next.
    Month,
}

/// Returns the days of a time zone of the IANA database, such as `Europe/Berlin`.
pub fn day(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Day, zone)
}

/// Returns the weeks of a time zone, from Monday to Monday.
pub fn week(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Week, zone)
}

/// Returns the months of a time zone.
pub fn month(zone: &str) -> Result<Calendar, ZoneError> {
    calendar(Unit::Month, zone)
}

/// Returns the days, weeks or months of a time zone.
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

/// Returns whether a time zone has this name; upper and lower case are the same.
pub fn has_zone(zone: &str) -> bool {
    ZONES.get(zone).is_ok()
}

/// Returns the names of all time zones.
pub fn zones() -> impl Iterator<Item = String> {
    ZONES.available().map(|name| name.as_str().to_owned())
}

impl Unit {
    /// All units of a calendar.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Returns the name of the unit, as configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// The first days of its periods, from one before the epoch on.
    fn first_days(self) -> impl Iterator<Item = Date> {
        // The first date is a Monday, the second the first of a month.
        let (monday, first) = (date(1969, 12, 29), date(1969, 12, 1));
        match self {
            Self::Day => monday.series(1.day()),
            Self::Week => monday.series(1.week()),
            Self::Month => first.series(1.month()),
        }
    }
}

/// The error of a calendar that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// No time zone has this name.
    #[error(
        "no time zone is called `{}`: use a name of the IANA database, for example Europe/Berlin",
        .zone.escape_default()
    )]
    Unknown {
        /// The name that was given.
        zone: String,
    },
    /// The periods do not make a valid [`Calendar`].
    #[error(transparent)]
    Calendar(#[from] CalendarError),
}

/// This crate's calendars. A program can give other periods such a name, so [`Calendar::named`] does
/// not suffice.
static MADE: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The first instant of each period, from the Unix epoch to the last year of the calendar.
fn starts(unit: Unit, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
    let starts = unit.first_days().map_while(|day| {
        // Where clocks skip midnight, this is the first instant after the skipped time.
        let start = day.to_zoned(zone.clone()).ok()?.timestamp().as_microsecond();
        (start < LAST).then_some(start)
    });
    let mut latest = 0;
    // A `Timestamp` cannot be before the epoch. A day that the zone skipped starts at the same
    // instant as the next day, so only one of the two is kept.
    starts.filter_map(move |start| {
        let start = u64::try_from(start).ok().filter(|start| *start > latest)?;
        latest = start;
        Some(Timestamp::from_micros(start))
    })
}

const LAST: i64 = Timestamp::MAX.as_micros() as i64;
