//! Calendar windows, such as days, weeks and months, which differ in length.

#[cfg(feature = "std")]
mod known;

use alloc::boxed::Box;
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::{Micros, Timestamp};

/// Calendar periods, such as the days in Berlin, two of which have 23 or 25 hours each year.
///
/// The core knows no time zones or leap years. A calendar is a table with the start of each period.
/// The crate `tollgate-calendar` creates tables for days, weeks and months in every time zone. Two
/// calendars are equal if they have the same name.
///
/// A handle is a single pointer, so quotas remain plain `Copy` values. The table behind it is never
/// freed, so create calendars from configuration, never from requests.
///
/// ```
/// use tollgate_core::{Calendar, Policy, Quota, Timestamp};
///
/// // Terms of a school.
/// let starts = [1_000, 1_700, 2_900].map(|s| Timestamp::from_micros(s * 1_000_000));
/// let terms = Calendar::new("term", starts)?;
/// let exams = Policy::fixed_window_counter("exams", Quota::per_calendar(3, terms))?;
/// assert_eq!(exams.to_string(), "exams: 3 units per calendar term, fixed_window_counter");
///
/// let period = terms.period(Timestamp::from_micros(1_234_000_000));
/// assert_eq!((period.start(), period.end()), (starts[0], starts[1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Calendar(&'static Table);

struct Table {
    name: Box<str>,
    id: u64,
    /// In ascending order.
    starts: Box<[Timestamp]>,
    longest: Micros,
}

/// A half-open time span: from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Period {
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    /// The longest calendar name, in bytes.
    pub const MAX_NAME: usize = 128;

    /// Returns the calendar's name.
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// Returns the 48-bit number that identifies this calendar in stored states. It is never zero
    /// and is the same in every process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the period that contains `now`.
    pub fn period(&self, now: Timestamp) -> Period {
        let starts = &self.0.starts;
        let after = starts.partition_point(|start| *start <= now);
        Period {
            start: after.checked_sub(1).map_or(Timestamp::EPOCH, |index| starts[index]),
            end: starts.get(after).copied().unwrap_or(Timestamp::MAX),
        }
    }

    /// Returns the two periods around the boundary nearest to `now`, for a store that gets an
    /// approximate time and decides with its own clock.
    pub fn around(&self, now: Timestamp) -> [Period; 2] {
        let period = self.period(now);
        let (gone, left) = (now.since(period.start), period.end.since(now));
        let is_first = period.start == Timestamp::EPOCH;
        if period.end < Timestamp::MAX && (is_first || left < gone) {
            [period, self.period(period.end)]
        } else {
            [self.period(period.start - Micros::new(1)), period]
        }
    }

    /// Returns the longest period that both starts and ends in the table.
    pub fn longest(&self) -> Micros {
        self.0.longest
    }
}

impl Period {
    /// Returns the first instant of the period.
    pub const fn start(&self) -> Timestamp {
        self.start
    }

    /// Returns the first instant after the period.
    pub const fn end(&self) -> Timestamp {
        self.end
    }

    /// Returns whether `at` is in the period.
    pub fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && at < self.end
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        // Each name has exactly one table.
        core::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Calendar").field(&self.name()).finish()
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error returned when a calendar cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarError {
    /// The name is empty, too long or not printable ASCII.
    #[doc(alias = "TG0603")]
    #[error(
        "the name of a calendar is 1 to {} printable ASCII characters [TG0603]",
        Calendar::MAX_NAME
    )]
    Name,
    /// There are fewer than two instants, so no period has both a start and an end.
    #[doc(alias = "TG0603")]
    #[error("a calendar of {count} instants has no complete period: it needs two or more [TG0603]")]
    TooFew {
        /// How many instants there were.
        count: usize,
    },
    /// The process already has a calendar with this name but different periods.
    #[doc(alias = "TG0603")]
    #[error(
        "the process already has a calendar with this name and different periods: give each its own \
         name [TG0603]"
    )]
    NameInUse,
    /// The instants are not in ascending order.
    #[doc(alias = "TG0603")]
    #[error(
        "instant {index} of the calendar, counted from 0, is not later than the one before it [TG0603]"
    )]
    Order {
        /// The index of the first instant that is out of order.
        index: usize,
    },
}

crate::debug_as_display!(CalendarError);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn every_instant_is_in_one_period() {
        let calendar = Calendar::new("three of a kind", [10, 13, 20].map(at)).unwrap();
        let max = Timestamp::MAX.as_micros();
        for (now, start, end) in [
            (0, 0, 10),
            (9, 0, 10),
            (10, 10, 13),
            (12, 10, 13),
            (13, 13, 20),
            (19, 13, 20),
            (20, 20, max),
            (1 << 50, 20, max),
        ] {
            let period = calendar.period(at(now));
            assert_eq!((period.start(), period.end()), (at(start), at(end)), "{now}");
            assert!(period.contains(at(now)));
        }
        assert_eq!(calendar.longest(), Micros::new(7));
    }

    #[test]
    fn around_returns_periods_beside_nearest_boundary() {
        let calendar = Calendar::new("around", [10, 20, 30].map(at)).unwrap();
        let max = Timestamp::MAX.as_micros();
        for (now, boundaries) in [
            (0, [0, 10, 20]),
            (10, [0, 10, 20]),
            (14, [0, 10, 20]),
            (15, [0, 10, 20]),
            (16, [10, 20, 30]),
            (24, [10, 20, 30]),
            (26, [20, 30, max]),
            (max, [20, 30, max]),
        ] {
            let [one, two] = calendar.around(at(now));
            assert_eq!([one.start(), one.end(), two.end()], boundaries.map(at), "{now}");
            assert_eq!(one.end(), two.start());
        }
    }

    #[test]
    fn calendar_name_identifies_one_table() {
        let one = Calendar::new("once", [1, 2].map(at)).unwrap();
        assert_eq!(Calendar::new("once", [1, 2].map(at)), Ok(one));
        assert_eq!(Calendar::new("once", [5, 9].map(at)), Err(CalendarError::NameInUse));
        assert_eq!(Calendar::new("once", [1, 2, 3].map(at)), Err(CalendarError::NameInUse));
        assert_eq!(Calendar::named("once"), Some(one));
        assert_ne!(one, Calendar::new("twice", [1, 2].map(at)).unwrap());
        assert_eq!(Calendar::named("never"), None);
        // Processes and versions share states by this number, so it must not change.
        assert_eq!(known::id_of("day in Europe/Berlin"), 0xd5eb_35b4_b8a2);
    }

    #[test]
    fn invalid_calendar_is_an_error() {
        let new = |name: &str, starts: &[u64]| Calendar::new(name, starts.iter().map(|s| at(*s)));
        assert_eq!(new("", &[1, 2]), Err(CalendarError::Name));
        assert_eq!(new("Tag in Köln", &[1, 2]), Err(CalendarError::Name));
        assert_eq!(new("one", &[1]), Err(CalendarError::TooFew { count: 1 }));
        assert_eq!(new("back", &[1, 4, 3]), Err(CalendarError::Order { index: 2 }));
        assert_eq!(new("still", &[1, 1, 3]), Err(CalendarError::Order { index: 1 }));
    }
}
