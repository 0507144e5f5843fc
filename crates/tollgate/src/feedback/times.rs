//! Waits, resets and amounts, in all notations.

use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{HeaderMap, HeaderName};

use super::text;

/// The service's time when it sent the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock(SystemTime);

impl ServerClock {
    /// Reads `Date`, because the service's clock may differ from ours.
    pub(super) fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let date = text(headers, DATE.as_str());
        Self(date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now))
    }

    /// Returns the time until a reset or the end of a wait, or `None` for a time in the past or an
    /// invalid value.
    pub(super) fn time_until(self, value: &str) -> Option<Duration> {
        match number(value) {
            // A wait of 31 years, so larger numbers are Unix times.
            Some(seconds) if seconds < 1e9 => seconds_of(seconds),
            Some(unix_seconds) if unix_seconds < 1e11 => self.until_unix(seconds_of(unix_seconds)?),
            Some(unix_millis) if unix_millis < 1e14 => {
                self.until_unix(seconds_of(unix_millis / 1e3)?)
            }
            Some(_) => None,
            None => duration(value).or_else(|| self.until(date(value)?)),
        }
    }

    fn until_unix(self, since_epoch: Duration) -> Option<Duration> {
        self.until(SystemTime::UNIX_EPOCH.checked_add(since_epoch)?)
    }

    fn until(self, time: SystemTime) -> Option<Duration> {
        time.duration_since(self.0).ok()
    }
}

/// The headers that contain only a wait: in seconds or as a date, or in milliseconds.
const WAITS: [(&str, Unit); 7] = [
    ("retry-after", Unit::Seconds),
    ("retry-after-ms", Unit::Millis),
    ("x-ms-retry-after-ms", Unit::Millis),
    ("x-amz-retry-after", Unit::Millis),
    ("grpc-retry-pushback-ms", Unit::Millis),
    ("x-ratelimit-retry-after", Unit::Seconds),
    ("x-rate-limit-time-reset-ms", Unit::Millis),
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Seconds,
    Millis,
}

impl Unit {
    pub(super) fn read(self, value: &str) -> Option<Duration> {
        let number = number(value)?;
        seconds_of(match self {
            Self::Seconds => number,
            Self::Millis => number / 1e3,
        })
    }
}

/// Returns the longest wait and its header. A wait of zero is no pause.
pub(super) fn longest_wait(
    headers: &HeaderMap,
    clock: ServerClock,
) -> Option<(Duration, HeaderName)> {
    let waits = WAITS.iter().flat_map(|(name, unit)| {
        let values = headers.get_all(*name).iter().filter_map(|value| value.to_str().ok());
        values.filter_map(move |value| {
            let wait = match unit {
                Unit::Seconds => clock.time_until(value),
                Unit::Millis => unit.read(value),
            };
            Some((wait?, *name))
        })
    });
    let longest = waits.filter(|(wait, _)| !wait.is_zero()).max_by_key(|(wait, _)| *wait);
    longest.map(|(wait, name)| (wait, HeaderName::from_static(name)))
}

/// Reads an amount such as `100` or `598.0`.
pub(super) fn amount(value: &str) -> Option<u64> {
    // Integers in structured headers have the same maximum.
    number(value).filter(|number| *number < 1e15).map(|number| number as u64)
}

/// Reads digits with an optional fraction. `f64` also parses `inf`, `NaN`, `-1` and `1e30`.
fn number(value: &str) -> Option<f64> {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_plain { value.parse().ok() } else { None }
}

fn seconds_of(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

/// Reads `6m0s`, `7.66s` or `12ms`. humantime panics if a duration overflows by its nanoseconds,
/// which takes at least 27 characters.
fn duration(value: &str) -> Option<Duration> {
    (value.len() <= 24).then(|| humantime::parse_duration(value).ok()).flatten()
}

fn date(value: &str) -> Option<SystemTime> {
    let rfc3339 = |value: &str| humantime::parse_rfc3339(value).ok();
    // Atlassian: `2026-11-28T07:05Z`
    let in_minutes = || rfc3339(&format!("{}:00Z", value.strip_suffix('Z')?));
    rfc3339(value).or_else(in_minutes).or_else(|| httpdate::parse_http_date(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// humantime 2.4 panics on the first value: remove the maximum length when it does not.
    #[test]
    fn overflowing_duration_is_ignored() {
        assert_eq!(duration("18446744073709551615s1000ms"), None);
        assert_eq!(duration("18446744073709551616s"), None);
        assert_eq!(
            duration("99999h59m59.999999999s"),
            Some(Duration::new(359_999_999, 999_999_999))
        );
    }
}
