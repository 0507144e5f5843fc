//! Times in access logs.

use tollgate_core::Timestamp;

/// `10/Oct/2000:13:55:36 -0700`, with or without a fraction of a second.
pub(super) fn clf(text: &[u8]) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(20)?;
    let [_, _, b'/', _, _, _, b'/', .., b':', _, _, b':', _, _, b':', _, _] = date else {
        return None;
    };
    if date.get(11) != Some(&b':') {
        return None;
    }
    let month = MONTHS.iter().position(|month| date[3..6].eq_ignore_ascii_case(*month))?;
    let day = days(number(&date[7..11])?, u64::try_from(month).ok()? + 1, number(&date[..2])?)?;
    let second = second(&date[12..14], &date[15..17], &date[18..20])?;
    let (micros, zone) = fraction(rest)?;
    at(day, second, micros, offset(zone.strip_prefix(b" ")?)?)
}

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// `2000-10-10T13:55:36.123-07:00`, with a `T` or a space.
pub(super) fn rfc3339(text: &[u8]) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(19)?;
    let [_, _, _, _, b'-', _, _, b'-', _, _, b'T' | b't' | b' ', _, _, b':', _, _, b':', _, _] =
        date
    else {
        return None;
    };
    let day = days(number(&date[..4])?, number(&date[5..7])?, number(&date[8..10])?)?;
    let second = second(&date[11..13], &date[14..16], &date[17..19])?;
    let (micros, zone) = fraction(rest)?;
    let zone = if zone.eq_ignore_ascii_case(b"z") { 0 } else { offset(zone)? };
    at(day, second, micros, zone)
}

/// Seconds since the Unix epoch, or milliseconds, microseconds or nanoseconds where the number is
/// too large for seconds. A fraction may follow.
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

/// A span in seconds, such as `0.025`.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let end = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole = number(&text[..end])?;
    let (micros, rest) = fraction(&text[end..])?;
    if !rest.is_empty() {
        return None;
    }
    whole.checked_mul(1_000_000)?.checked_add(micros)
}

/// Digits and nothing else.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

/// The microseconds of a fraction, if one follows, and what is behind it.
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

/// A second of a day. A leap second is the last second of its day.
fn second(hour: &[u8], minute: &[u8], second: &[u8]) -> Option<u64> {
    let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
    (hour < 24 && minute < 60 && second <= 60).then(|| hour * 3_600 + minute * 60 + second.min(59))
}

/// `+0200` or `+02:00`, in seconds.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        [sign, h, i, m, n] | [sign, h, i, b':', m, n] => (sign, [*h, *i], [*m, *n]),
        _ => return None,
    };
    let seconds = number(&hours)? * 3_600 + number(&minutes)? * 60;
    let seconds = i64::try_from(seconds).ok()?;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Days since the Unix epoch. The year begins in March here, so that a leap day is its last.
fn days(year: u64, month: u64, day: u64) -> Option<i64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    i64::try_from(days).ok()?.checked_sub(719_468)
}

fn at(day: i64, second: u64, micros: u64, offset: i64) -> Option<Timestamp> {
    let seconds = day * 86_400 + i64::try_from(second).ok()? - offset;
    let micros = u64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(micros)?;
    Some(Timestamp::from_micros(micros))
}

/// The last time that was read: in a busy log many lines have the same.
#[derive(Debug, Default)]
pub(super) struct Last {
    text: Vec<u8>,
    at: Timestamp,
}

impl Last {
    /// The time that `text` states, by `parse`.
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
    fn the_same_instant_in_every_notation() {
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
    fn fractions_of_a_second_are_kept_to_the_microsecond() {
        assert_eq!(micros(clf(b"01/Jan/1970:00:00:01.25 +0000")), Some(1_250_000));
        assert_eq!(micros(rfc3339(b"1970-01-01T00:00:00.123456789Z")), Some(123_456));
        assert_eq!(micros(epoch(b"1.5")), Some(1_500_000));
        assert_eq!(seconds(b"0.025"), Some(25_000));
        assert_eq!(seconds(b"12"), Some(12_000_000));
    }

    #[test]
    fn a_text_that_is_no_time_is_refused() {
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
        fn every_day_is_one_day_after_the_day_before(day in 0_i64..60_000) {
            // Counted the slow way, from 1970 on.
            let (mut year, mut left) = (1970_u64, day);
            let length = |year: u64| if days(year, 2, 29).is_some() { 366 } else { 365 };
            while left >= length(year) {
                left -= length(year);
                year += 1;
            }
            prop_assert_eq!(days(year, 1, 1), Some(day - left));
            let of_month = |month| (28..=31).rev().find(|day| days(year, month, *day).is_some());
            let mut month = 1;
            while left >= i64::try_from(of_month(month).unwrap()).unwrap() {
                left -= i64::try_from(of_month(month).unwrap()).unwrap();
                month += 1;
            }
            prop_assert_eq!(days(year, month, u64::try_from(left).unwrap() + 1), Some(day));
        }

        #[test]
        fn no_text_is_too_odd(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (clf(&text), rfc3339(&text), epoch(&text), seconds(&text));
        }
    }
}
