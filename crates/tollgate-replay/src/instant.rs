//! Instants as people and other programs read them.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_core::Timestamp;

/// `2000-10-10T20:55:36Z`, with microseconds where there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Timestamp);

impl Instant {
    /// Year, month, day, hour, minute and second in UTC.
    pub fn parts(self) -> [u64; 6] {
        let seconds = self.0.as_micros() / 1_000_000;
        // The year begins in March here, so that a leap day is its last.
        let days = seconds / 86_400 + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year + era * 400 + u64::from(month <= 2);
        [year, month, day, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60]
    }

    /// The day of the week, from Monday (0) to Sunday (6), and the hour.
    pub(crate) const fn hour_of_week(self) -> (usize, usize) {
        let hours = self.0.as_micros() / 3_600_000_000;
        (((hours / 24 + 3) % 7) as usize, (hours % 24) as usize)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [year, month, day, hour, minute, second] = self.parts();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match self.0.as_micros() % 1_000_000 {
            0 => {}
            micros => write!(f, ".{micros:06}")?,
        }
        f.write_str("Z")
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
    fn instants_are_written_in_utc() {
        for (micros, text, hour) in [
            (0, "1970-01-01T00:00:00Z", (3, 0)),
            (971_211_336_000_000, "2000-10-10T20:55:36Z", (1, 20)),
            (951_782_399_250_000, "2000-02-28T23:59:59.250000Z", (0, 23)),
            (951_868_800_000_000, "2000-03-01T00:00:00Z", (2, 0)),
            (1_735_689_599_000_000, "2024-12-31T23:59:59Z", (1, 23)),
        ] {
            let instant = Instant(Timestamp::from_micros(micros));
            assert_eq!((instant.to_string(), instant.hour_of_week()), (text.to_owned(), hour));
        }
    }
}
