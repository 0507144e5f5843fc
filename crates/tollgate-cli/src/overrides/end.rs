//! When an override ends.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

/// A time or an instant: exactly one of both.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct End {
    /// How long it lasts, such as `2h` or `30m`
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
    /// When it ends: `tomorrow` (the next midnight in UTC), or an RFC 3339 time such as
    /// 2030-01-31T18:00:00+09:00
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
}

impl End {
    /// Returns the member of the admin API's request.
    pub(super) fn read(&self) -> Result<(&'static str, Value), String> {
        match (&self.lasts, &self.until) {
            (Some(lasts), _) => Ok(("for", lasts.as_secs_f64().into())),
            (None, Some(until)) => Ok(("until", read_until(until, Timestamp::now())?.into())),
            // clap requires either.
            (None, None) => Err("an override needs `--for` or `--until` [TG0709]".to_owned()),
        }
    }
}

fn read_until(until: &str, now: Timestamp) -> Result<String, String> {
    let end = if until == "tomorrow" {
        let tomorrow = TimeZone::UTC.to_datetime(now).date().tomorrow();
        let midnight = tomorrow.and_then(|day| TimeZone::UTC.to_timestamp(day.into()));
        midnight.map_err(|error| error.to_string())?
    } else {
        until.parse().map_err(|_| {
            format!(
                "`--until {until}` is not a time: write `tomorrow`, or a time with its offset such \
                 as 2030-01-31T18:00:00+09:00 [TG0709]"
            )
        })?
    };
    if end <= now {
        return Err(format!("`--until {until}` is not in the future: it is {now:.0} now [TG0709]"));
    }
    Ok(end.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_instants_in_utc() {
        let now: Timestamp = "2026-11-28T22:30:00Z".parse().unwrap();
        for (until, end) in [
            ("tomorrow", Ok("2026-11-29T00:00:00Z")),
            ("2026-11-29T09:00:00+09:00", Ok("2026-11-29T00:00:00Z")),
            ("2026-11-29T00:00:00.5Z", Ok("2026-11-29T00:00:00.5Z")),
            (
                "2026-11-28T22:30:00Z",
                Err("is not in the future: it is 2026-11-28T22:30:00Z now [TG0709]"),
            ),
            ("2026-11-29", Err("is not a time: write `tomorrow`")),
            ("noon", Err("is not a time")),
        ] {
            match (read_until(until, now), end) {
                (Ok(read), Ok(end)) => assert_eq!(read, end, "{until}"),
                (Err(said), Err(cure)) => assert!(said.contains(cure), "{said}"),
                (read, _) => panic!("{until}: {read:?}"),
            }
        }
    }
}
