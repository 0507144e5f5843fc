//! Windows that are not all of one length: days, weeks and months of some place.

#[cfg(feature = "std")]
mod known;

use alloc::boxed::Box;
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::{Micros, Timestamp};

/// The periods of a calendar, such as the days of Berlin, two of which have 23 and 25 hours in a
/// year.
///
/// The core has no time zones and leap years: a calendar is a table of the instants at which its
/// periods begin. The crate `tollgate-calendar` makes tables for days, weeks and months of every
/// time zone. Two calendars are equal if they have the same name.
///
/// A handle is one pointer. The table of each name is kept while the process lives, so that quotas
/// stay plain values. So make calendars from configuration, never from requests.
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

/// The time from one instant up to, but not including, another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Period {
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    /// The longest name of a calendar, in bytes.
    pub const MAX_NAME: usize = 128;

    /// Returns the name of the calendar.
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// Returns the number of 48 bits that means this calendar in stored states: never zero, and the
    /// same in every process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the period in which `now` is.
    pub fn period(&self, now: Timestamp) -> Period {
        let starts = &self.0.starts;
        let after = starts.partition_point(|start| *start <= now);
        Period {
            start: after.checked_sub(1).map_or(Timestamp::EPOCH, |index| starts[index]),
            end: starts.get(after).copied().unwrap_or(Timestamp::MAX),
        }
    }

    /// Returns the two periods beside the boundary nearest to `now`: for a store that gets an
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

    /// Returns the longest period that has both a start and an end in the table.
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
        // There is one table to a name.
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

/// The error of a calendar that cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarError {
    /// The name is empty, too long or not printable ASCII.
    #[error("the name of a calendar is 1 to {} printable ASCII characters", Calendar::MAX_NAME)]
    Name,
    /// Without a period that begins and ends there is nothing to count in.
    #[error("a calendar of {count} instants has no whole period: give it two or more")]
    TooFew {
        /// How many there were.
        count: usize,
    },
    /// The process has a calendar with this name and other periods.
    #[error(
        "the process already has a calendar with this name and other periods: give each calendar \
         its own name"
    )]
    NameInUse,
    /// The instants do not ascend.
    #[error("instant {index} of the calendar, counted from 0, is not later than the one before it")]
    Order {
        /// Which one.
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
    fn the_nearest_boundary_is_between_the_two_around() {
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
    fn a_name_means_one_table() {
        let one = Calendar::new("once", [1, 2].map(at)).unwrap();
        assert_eq!(Calendar::new("once", [1, 2].map(at)), Ok(one));
        assert_eq!(Calendar::new("once", [5, 9].map(at)), Err(CalendarError::NameInUse));
        assert_eq!(Calendar::new("once", [1, 2, 3].map(at)), Err(CalendarError::NameInUse));
        assert_eq!(Calendar::named("once"), Some(one));
        assert_ne!(one, Calendar::new("twice", [1, 2].map(at)).unwrap());
        assert_eq!(Calendar::named("never"), None);
        // Processes and versions share states by it.
        assert_eq!(known::id_of("day in Europe/Berlin"), 0xd5eb_35b4_b8a2);
    }

    #[test]
    fn what_is_no_calendar_is_refused() {
        let new = |name: &str, starts: &[u64]| Calendar::new(name, starts.iter().map(|s| at(*s)));
        assert_eq!(new("", &[1, 2]), Err(CalendarError::Name));
        assert_eq!(new("Tag in Köln", &[1, 2]), Err(CalendarError::Name));
        assert_eq!(new("one", &[1]), Err(CalendarError::TooFew { count: 1 }));
        assert_eq!(new("back", &[1, 4, 3]), Err(CalendarError::Order { index: 2 }));
        assert_eq!(new("still", &[1, 1, 3]), Err(CalendarError::Order { index: 1 }));
    }
}
