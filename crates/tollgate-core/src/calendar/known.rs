//! All calendars in this process. They are behind a lock, which needs `std`.

use std::sync::{Mutex, PoisonError};

use super::{Calendar, CalendarError, Table};
use crate::Timestamp;
use crate::math::fnv1a;

impl Calendar {
    /// Creates a calendar with this name, a noun such as "day in Europe/Berlin", and periods that
    /// start at these instants. The time before the first instant is also a period, and so is the
    /// time after the last instant.
    ///
    /// If the process already has a calendar with this name and the same periods, it is returned.
    ///
    /// # Errors
    /// See [`CalendarError`]. It is also an error if the name already has different periods: states
    /// only contain the name, so both calendars would use the same table.
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

    /// Returns the calendar with this name, if the process has created it.
    pub fn named(name: &str) -> Option<Self> {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|it| it.name() == name).copied()
    }
}

/// All calendars created so far. There are only as many as the configuration names.
static KNOWN: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

fn check_name(name: &str) -> Result<(), CalendarError> {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if name.is_empty() || name.len() > Calendar::MAX_NAME || !printable {
        return Err(CalendarError::Name);
    }
    Ok(())
}

/// FNV-1a hash, folded to 48 bits. If two names collide, a state written under one calendar merely
/// finishes its period under the other.
pub(super) fn id_of(name: &str) -> u64 {
    let hash = fnv1a(name);
    ((hash >> 48 ^ hash) & ((1 << 48) - 1)).max(1)
}
