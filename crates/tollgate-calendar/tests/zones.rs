//! Compares the periods in real time zones with known clock changes.

use jiff::Timestamp as Instant;
use tollgate_calendar::{Unit, ZoneError, calendar, day, month, week, zones};
use tollgate_core::{Calendar, CalendarError, Micros, Timestamp};

const HOUR: u64 = 3_600_000_000;

fn at(text: &str) -> Timestamp {
    let instant: Instant = text.parse().expect("an instant");
    Timestamp::from_micros(u64::try_from(instant.as_microsecond()).expect("past 1970"))
}

fn assert_period(calendar: Calendar, now: &str, start: &str, end: &str) {
    let period = calendar.period(at(now));
    assert_eq!((period.start(), period.end()), (at(start), at(end)), "{calendar} at {now}");
}

#[test]
fn days_follow_the_local_clock() {
    let berlin = day("Europe/Berlin").unwrap();
    assert_eq!(berlin.name(), "day in Europe/Berlin");
    assert_period(berlin, "2026-01-15T12:00:00Z", "2026-01-14T23:00:00Z", "2026-01-15T23:00:00Z");
    // These two days have 23 and 25 hours.
    assert_period(berlin, "2026-03-29T00:59:59Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z");
    assert_period(berlin, "2026-10-25T00:30:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
    assert_eq!(berlin.longest(), Micros::new(25 * HOUR));
    // The database lists individual years only up to a point, followed by a rule.
    assert_period(berlin, "2200-07-01T12:00:00Z", "2200-06-30T22:00:00Z", "2200-07-01T22:00:00Z");
}

#[test]
fn days_handle_skipped_midnights_and_days() {
    let cairo = day("Africa/Cairo").unwrap();
    // On 2024-04-26, clocks in Cairo went from midnight to one.
    assert_period(cairo, "2024-04-26T01:00:00Z", "2024-04-25T22:00:00Z", "2024-04-26T21:00:00Z");
    // Apia went directly from December 29 to December 31, 2011.
    let apia = day("Pacific/Apia").unwrap();
    assert_period(apia, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z");
    assert_period(apia, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z");
}

#[test]
fn weeks_and_months_start_on_first_day() {
    let tokyo = week("Asia/Tokyo").unwrap();
    assert_period(tokyo, "2026-11-21T12:00:00Z", "2026-11-15T15:00:00Z", "2026-11-22T15:00:00Z");
    let new_york = month("America/New_York").unwrap();
    assert_period(new_york, "2028-02-29T23:00:00Z", "2028-02-01T05:00:00Z", "2028-03-01T05:00:00Z");
    assert_period(new_york, "2026-11-15T00:00:00Z", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z");
}

#[test]
fn periods_cover_every_timestamp() {
    for unit in Unit::ALL {
        let utc = calendar(unit, "UTC").unwrap();
        assert_eq!(utc.period(Timestamp::EPOCH).start(), Timestamp::EPOCH);
        let last = Timestamp::MAX - Micros::new(1);
        assert!(last.since(utc.period(last).start()) < Micros::new(31 * 24 * HOUR));
    }
}

#[test]
fn periods_have_realistic_lengths() {
    for zone in ["Africa/Casablanca", "America/Asuncion", "Asia/Gaza", "Australia/Lord_Howe"] {
        for (unit, least, most) in [(Unit::Day, 23, 25), (Unit::Month, 28 * 24 - 1, 31 * 24 + 1)] {
            let calendar = calendar(unit, zone).unwrap();
            let mut now = at("2024-01-01T00:00:00Z");
            while now < at("2029-01-01T00:00:00Z") {
                let period = calendar.period(now);
                let length = period.end().since(period.start()).get();
                assert!((least * HOUR..=most * HOUR).contains(&length), "{zone} {period:?}");
                now = period.end();
            }
        }
    }
}

#[test]
fn zone_names_ignore_case() {
    let (one, other) = (day("europe/berlin").unwrap(), day("Europe/Berlin").unwrap());
    assert_eq!(one, other);
    assert_eq!(one.name(), "day in Europe/Berlin");
    let error = day("Europe/Berln").unwrap_err();
    assert_eq!(error, ZoneError::Unknown { zone: "Europe/Berln".to_owned() });
    assert!(tollgate_calendar::has_zone("europe/berlin"));
    assert!(!tollgate_calendar::has_zone("Europe/Berln"));
    assert!(zones().any(|zone| zone == "Europe/Berlin"));
}

/// Other tests use different zones, because a process has a single table for each name.
#[test]
fn occupied_name_is_an_error() {
    let foreign = Calendar::new("day in Asia/Kathmandu", [1, 2].map(Timestamp::from_micros));
    let expected = Err(ZoneError::Calendar(CalendarError::NameInUse));
    assert_eq!(day("Asia/Kathmandu"), expected, "{foreign:?}");
    // The same periods under the same name are the same calendar.
    let starts = |calendar: Calendar| {
        let first = calendar.period(Timestamp::EPOCH).end();
        let next = move |at: &Timestamp| Some(calendar.period(*at).end());
        std::iter::successors(Some(first), next).take_while(|at| *at < Timestamp::MAX)
    };
    let week = week("Asia/Kathmandu").unwrap();
    assert_eq!(Calendar::new(week.name(), starts(week)), Ok(week));
}
