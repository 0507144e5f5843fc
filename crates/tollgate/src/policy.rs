//! The parts of a [`Policy`](crate::Policy): algorithms and their settings, leases and calendars.

pub use tollgate_core::{
    Algorithm, Calendar, CalendarError, Kind, LeakyMode, Lease, Period, Refill, Resolution,
};
