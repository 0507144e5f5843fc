//! Windows that are not all of one length: days, weeks and months of some place.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use crate::math::fnv1a;
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

    /// Creates the calendar of this name, a noun such as "day in Europe/Berlin", whose periods
    /// begin at these instants. The time before the first instant is a period, and so is the time
    /// after the last.
    ///
    /// If the process already has a calendar with this name and these periods, it is returned.
    ///
    /// # Errors
    /// See [`CalendarError`]. A calendar with this name and other periods is an error too: states
    /// contain the name only, so both would use one table.
    pub fn new(
        name: impl Into<String>,
        starts: impl IntoIterator<Item = Timestamp>,
    ) -> Result<Self, CalendarError> {
        let name = name.into();
        check_name(&name)?;
        let starts: Box<[Timestamp]> = starts.into_iter().collect();
        let lengths = starts.windows(2).map(|pair| pair[1].since(pair[0]));
        let longest = lengths.max().ok_or(CalendarError::TooFew { count: starts.len() })?;
        if let Some(index) = starts.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(CalendarError::Order { index: index + 1 });
        }
        // A panic cannot leave the list half changed, because it only grows.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calendar) = known.iter().find(|it| it.name() == name) {
            return if calendar.0.starts == starts {
                Ok(*calendar)
            } else {
                Err(CalendarError::NameInUse)
            };
        }
        let id = id_of(&name);
        let table = Table { name: name.into(), id, starts, longest };
        let calendar = Self(Box::leak(Box::new(table)));
        known.push(calendar);
        Ok(calendar)
    }

    /// Returns the calendar of this name, if the process has created it.
    pub fn named(name: &str) -> Option<Self> {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|it| it.name() == name).copied()
    }

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
        std::ptr::eq(self.0, other.0)
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

/// All calendars that were ever made. There are as many as configuration has named.
static KNOWN: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

fn check_name(name: &str) -> Result<(), CalendarError> {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if name.is_empty() || name.len() > Calendar::MAX_NAME || !printable {
        return Err(CalendarError::Name);
    }
    Ok(())
}

/// FNV-1a of the name, folded to 48 bits. Two names of one number would only let a state
/// of one finish its period under the other.
fn id_of(name: &str) -> u64 {
    let hash = fnv1a(name);
    ((hash >> 48 ^ hash) & ((1 << 48) - 1)).max(1)
}

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
        assert_eq!(id_of("day in Europe/Berlin"), 0xd5eb_35b4_b8a2);
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
