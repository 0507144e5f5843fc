//! Times in access logs.

use jiff::fmt::{strtime, temporal};
use tollgate_core::Timestamp;

/// `10/Oct/2000:13:55:36 -0700`, with or without a fraction of a second.
pub(super) fn clf(text: &[u8]) -> Option<Timestamp> {
    instant(strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).and_then(|it| it.to_timestamp()))
}

/// `2000-10-10T13:55:36.123-07:00`, with a `T` or a space.
pub(super) fn rfc3339(text: &[u8]) -> Option<Timestamp> {
    static PARSER: temporal::DateTimeParser = temporal::DateTimeParser::new();
    instant(PARSER.parse_timestamp(text))
}

/// Converts a parsed time. Requests cannot have times before 1970.
fn instant(parsed: Result<jiff::Timestamp, jiff::Error>) -> Option<Timestamp> {
    u64::try_from(parsed.ok()?.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// Seconds since the Unix epoch, optionally with a fraction. Numbers that are too large for seconds
/// are milliseconds, microseconds or nanoseconds.
pub(super) fn epoch(text: &[u8]) -> Option<Timestamp> {
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

/// A duration in seconds, such as `0.025`.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let end = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole = number(&text[..end])?;
    let (micros, rest) = fraction(&text[end..])?;
    if !rest.is_empty() {
        return None;
    }
    whole.checked_mul(1_000_000)?.checked_add(micros)
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

/// Caches the previous line's parsed time, because many lines in a busy log have the same time.
#[derive(Debug, Default)]
pub(super) struct Last {
    text: Vec<u8>,
    at: Timestamp,
}

impl Last {
    /// Parses `text`, unless it equals the previous text.
    #[inline]
    pub(super) fn of(
        &mut self,
        text: &[u8],
        parse: impl FnOnce(&[u8]) -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        if self.text != text {
            let at = parse(text)?;
            self.text.clear();
            self.text.extend_from_slice(text);
            self.at = at;
        }
        Some(self.at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(at: Option<Timestamp>) -> Option<u64> {
        at.map(Timestamp::as_micros)
    }

    #[test]
    fn all_notations_give_the_same_instant() {
        let at = Some(971_211_336_000_000);
        assert_eq!(micros(clf(b"10/Oct/2000:13:55:36 -0700")), at);
        assert_eq!(micros(clf(b"10/Oct/2000:20:55:36 +0000")), at);
        assert_eq!(micros(rfc3339(b"2000-10-10T13:55:36-07:00")), at);
        assert_eq!(micros(rfc3339(b"2000-10-10T20:55:36Z")), at);
        assert_eq!(micros(rfc3339(b"2000-10-10 20:55:36.000Z")), at);
        assert_eq!(micros(epoch(b"971211336")), at);
        assert_eq!(micros(epoch(b"971211336.000")), at);
        assert_eq!(micros(epoch(b"971211336000")), at);
        assert_eq!(micros(epoch(b"971211336000000")), at);
        assert_eq!(micros(epoch(b"971211336000000000")), at);
    }

    #[test]
    fn fractions_are_read_to_the_microsecond() {
        assert_eq!(micros(clf(b"01/Jan/1970:00:00:01.25 +0000")), Some(1_250_000));
        assert_eq!(micros(rfc3339(b"1970-01-01T00:00:00.123456789Z")), Some(123_456));
        assert_eq!(micros(epoch(b"1.5")), Some(1_500_000));
        assert_eq!(seconds(b"0.025"), Some(25_000));
        assert_eq!(seconds(b"12"), Some(12_000_000));
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
            "10/Oct/2000:13:55:36",
            "10/Oct/2000:13:55:36 0700",
            "10/Oct/2000:13:55:36. -0700",
            "10/Oct/2000:13:55:36 -07:0",
            "01/Jan/1969:00:00:00 +0000",
            "10/Oct/2000 13:55:36 -0700",
        ] {
            assert_eq!(clf(text.as_bytes()), None, "{text}");
        }
        for text in ["2000-13-10T13:55:36Z", "2000-10-10T13:55:36", "2000-10-10T13:55:36+7", "x"] {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text}");
        }
        for text in ["", ".5", "1.", "1e9", "-1", "99999999999999999999"] {
            assert_eq!(epoch(text.as_bytes()), None, "{text}");
            assert_eq!(seconds(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (clf(&text), rfc3339(&text), epoch(&text), seconds(&text));
        }
    }
}
