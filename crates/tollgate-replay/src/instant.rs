//! Instants in reports.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_core::Timestamp;

/// An instant, formatted as `2000-10-10T20:55:36Z` with a fraction of a second if necessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Timestamp);

impl Instant {
    /// Converts to UTC. Times after the year 9999 become the end of that year.
    pub(crate) fn in_utc(self) -> jiff::Timestamp {
        let micros = i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX)
    }

    /// The weekday, from Monday (0) to Sunday (6), and the hour.
    pub(crate) const fn hour_of_week(self) -> (usize, usize) {
        let hours = self.0.as_micros() / 3_600_000_000;
        (((hours / 24 + 3) % 7) as usize, (hours % 24) as usize)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.in_utc().fmt(f)
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_formatted_in_utc() {
        for (micros, text, hour) in [
            (0, "1970-01-01T00:00:00Z", (3, 0)),
            (971_211_336_000_000, "2000-10-10T20:55:36Z", (1, 20)),
            (951_782_399_250_000, "2000-02-28T23:59:59.25Z", (0, 23)),
            (951_868_800_000_000, "2000-03-01T00:00:00Z", (2, 0)),
            (1_735_689_599_000_000, "2024-12-31T23:59:59Z", (1, 23)),
        ] {
            let instant = Instant(Timestamp::from_micros(micros));
            assert_eq!((instant.to_string(), instant.hour_of_week()), (text.to_owned(), hour));
        }
    }
}
