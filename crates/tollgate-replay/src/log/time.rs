//! Times in access logs.

use std::fmt;
use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::fmt::{strtime, temporal};
use jiff::tz::TimeZone;
use tollgate_core::Timestamp;

/// The time zone of times that name none, which is UTC by default.
#[derive(Clone, Debug)]
pub struct Zone {
    zone: TimeZone,
    name: Box<str>,
}

/// The error for an unknown time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a time zone such as UTC, Europe/Berlin or +09:00")]
pub struct UnknownZone;

impl Default for Zone {
    fn default() -> Self {
        Self { zone: TimeZone::UTC, name: "UTC".into() }
    }
}

impl FromStr for Zone {
    type Err = UnknownZone;

    fn from_str(name: &str) -> Result<Self, UnknownZone> {
        let zone = PARSER.parse_time_zone(name).map_err(|_| UnknownZone)?;
        Ok(Self { zone, name: name.into() })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Parses times. Many lines in a busy log have the same time, so the previous time is cached.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) zone: Zone,
    text: Vec<u8>,
    at: Timestamp,
    /// Whether a time named no zone.
    pub(super) used_zone: bool,
}

impl Times {
    pub(super) fn new(zone: Zone) -> Self {
        Self { zone, ..Self::default() }
    }

    #[inline]
    pub(super) fn parse(&mut self, text: &[u8]) -> Option<Timestamp> {
        if text.is_empty() || self.text != text {
            self.at = self.parse_other(text)?;
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        Some(self.at)
    }

    fn parse_other(&mut self, text: &[u8]) -> Option<Timestamp> {
        let is_at = |at: usize, byte| text.get(at) == Some(&byte);
        let parsed = if is_at(2, b'/') {
            clf(text)
        } else if is_at(4, b'-') && text.len() > DATE {
            PARSER
                .parse_timestamp(text)
                .ok()
                .map(Parsed::Instant)
                .or_else(|| PARSER.parse_datetime(text).ok().map(Parsed::Local))
        } else {
            return epoch(text);
        };
        let instant = match parsed? {
            Parsed::Instant(instant) => instant,
            Parsed::Local(time) => {
                self.used_zone = true;
                self.zone.zone.to_timestamp(time).ok()?
            }
        };
        // Requests cannot have times before 1970.
        u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_micros)
    }
}

/// The length of a date without a time.
const DATE: usize = "2000-10-10".len();

static PARSER: temporal::DateTimeParser = temporal::DateTimeParser::new();

enum Parsed {
    Instant(jiff::Timestamp),
    /// A time without a zone.
    Local(DateTime),
}

/// `10/Oct/2000:13:55:36 -0700`, also with a fraction or without a zone.
fn clf(text: &[u8]) -> Option<Parsed> {
    if memchr::memchr(b' ', text).is_some() {
        let parsed = strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).ok()?;
        return parsed.to_timestamp().ok().map(Parsed::Instant);
    }
    let parsed = strtime::parse("%d/%b/%Y:%H:%M:%S%.f", text).ok()?;
    parsed.to_datetime().ok().map(Parsed::Local)
}

/// Seconds since the Unix epoch, optionally with a fraction. Numbers that are too large for seconds
/// are milliseconds, microseconds or nanoseconds.
fn epoch(text: &[u8]) -> Option<Timestamp> {
    let end = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole = number(&text[..end])?;
    let (micros, rest) = fraction(&text[end..])?;
    if !rest.is_empty() {
        return None;
    }
    let micros = match whole {
        // The year 5138 in seconds is 1973 in milliseconds.
        0..100_000_000_000 => whole * 1_000_000 + micros,
        100_000_000_000..100_000_000_000_000 => whole * 1_000 + micros / 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => whole,
        _ => whole / 1_000,
    };
    Some(Timestamp::from_micros(micros))
}

/// A duration such as `0.025`, or `0.025s` with its own unit. Returns the number and the unit in
/// nanoseconds.
pub(super) fn with_unit(text: &[u8], unit: u32) -> Option<(f64, f64)> {
    let text = unquoted(text)?;
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[number.len()..] {
        "" => f64::from(unit),
        "s" => 1e9,
        "ms" => 1e6,
        // Unicode has two signs for micro.
        "us" | "µs" | "μs" => 1e3,
        "ns" => 1.0,
        _ => return None,
    };
    Some((number.parse().ok()?, unit))
}

/// A decimal number.
pub(super) fn float(text: &[u8]) -> Option<f64> {
    unquoted(text)?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Some servers quote numbers.
fn unquoted(text: &[u8]) -> Option<&str> {
    Some(std::str::from_utf8(text).ok()?.trim_matches('"'))
}

/// Parses text that consists only of digits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

/// Parses an optional fraction. Returns its microseconds and the remaining text.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else {
        return Some((0, text));
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    let micros = digits.iter().chain([b'0'; 6].iter()).take(6);
    let micros = micros.fold(0, |micros, digit| micros * 10 + u64::from(digit - b'0'));
    (!digits.is_empty()).then_some((micros, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(text: &str) -> Option<u64> {
        micros_in("UTC", text)
    }

    fn micros_in(zone: &str, text: &str) -> Option<u64> {
        Times::new(zone.parse().unwrap()).parse(text.as_bytes()).map(Timestamp::as_micros)
    }

    #[test]
    fn all_notations_give_the_same_instant() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "10/Oct/2000:20:55:36",
            "10/Oct/2000:20:55:36.000",
            "2000-10-10T13:55:36-07:00",
            "2000-10-10T20:55:36Z",
            "2000-10-10 20:55:36.000Z",
            "2000-10-10 20:55:36",
            "2000-10-10T20:55:36.000",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(micros(text), Some(971_211_336_000_000), "{text}");
        }
    }

    /// Berlin repeats 02:30 on 29 October 2000, and skips it on 26 March 2000.
    #[test]
    fn the_zone_counts_only_for_times_without_one() {
        for (zone, text, expected) in [
            ("+09:00", "10/Oct/2000:20:55:36", 971_178_936_000_000),
            ("Asia/Seoul", "2000-10-10 20:55:36", 971_178_936_000_000),
            ("Asia/Seoul", "2000-10-10 20:55:36Z", 971_211_336_000_000),
            ("Asia/Seoul", "10/Oct/2000:20:55:36 +0000", 971_211_336_000_000),
            ("Asia/Seoul", "971211336", 971_211_336_000_000),
            ("Europe/Berlin", "2000-10-29 02:30:00", 972_779_400_000_000),
            ("Europe/Berlin", "2000-03-26 02:30:00", 954_034_200_000_000),
        ] {
            assert_eq!(micros_in(zone, text), Some(expected), "{zone} {text}");
        }
        for zone in ["", "Mars", "9", "+99:00"] {
            assert!(zone.parse::<Zone>().is_err(), "{zone}");
        }
    }

    #[test]
    fn fractions_are_read_to_the_microsecond() {
        assert_eq!(micros("01/Jan/1970:00:00:01.25 +0000"), Some(1_250_000));
        assert_eq!(micros("1970-01-01T00:00:00.123456789Z"), Some(123_456));
        assert_eq!(micros("1.5"), Some(1_500_000));
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, expected) in [
            ("0.025", Some(25e6)),
            ("12", Some(12e9)),
            ("-1", Some(-1e9)),
            ("\"3\"", Some(3e9)),
            ("0.065s", Some(65e6)),
            ("250ms", Some(250e6)),
            ("7µs", Some(7e3)),
            ("7us", Some(7e3)),
            ("9ns", Some(9.0)),
            ("1e-3s", Some(1e6)),
            ("1h", None),
            ("later", None),
            ("s", None),
            ("", None),
            ("inf", None),
        ] {
            let duration = with_unit(text.as_bytes(), 1_000_000_000);
            assert_eq!(duration.map(|(number, unit)| number * unit), expected, "{text}");
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in [
            "",
            "-",
            "10/Oct/2000",
            "10/Okt/2000:13:55:36 -0700",
            "31/Feb/2000:13:55:36 -0700",
            "10/Oct/2000:24:00:00 -0700",
            "10/Oct/2000:13:55:36 0700",
            "10/Oct/2000:13:55:36. -0700",
            "10/Oct/2000:13:55:36 -07:0",
            "01/Jan/1969:00:00:00 +0000",
            "10/Oct/2000 13:55:36 -0700",
            "2000-10-10",
            "2000-13-10T13:55:36Z",
            "2000-10-10T13:55:36+7",
            "x",
            ".5",
            "1.",
            "1e9",
            "-1",
            "99999999999999999999",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (Times::default().parse(&text), with_unit(&text, 1));
        }
    }
}
