use tollgate::policy::calendar::Unit;

use super::value_types::Units;
use crate::file::format;
use crate::yaml::typed::{self, Time, section, words};

/// 400 days, the longest window.
type Seconds = typed::Seconds<{ 400 * 86_400 }>;

section! {
    /// The window of a quota, and its burst.
    keys Window = "window" either [window window_seconds calendar] {
        /// The window of the limit: `500ms`, `60s`, `1h`.
        optional window: Time,
        /// The same in seconds.
        optional window_seconds: Seconds,
        /// The time to refill `limit` units (token_bucket) or to drain them (leaky_bucket). It
        /// replaces the window and does not affect other algorithms.
        optional refill_seconds: Seconds,
        /// A calendar period that replaces the window. Only for fixed_window_counter.
        optional calendar: Period,
        /// The time zone of `calendar`, such as `Europe/Berlin`. Default: `UTC`.
        optional time_zone: format::TimeZone
            where calendar: "a duration is the same in every time zone",
        /// The maximum number of units that can be used immediately, for token_bucket and
        /// leaky_bucket. Default: the limit.
        optional burst: Units,
    }
}

words! {
    Period -> Unit {
        /// From midnight to midnight.
        "day" => Unit::Day,
        /// From Monday to Monday.
        "week" => Unit::Week,
        /// From the first day of the month to the first day of the next month.
        "month" => Unit::Month,
    }
}
