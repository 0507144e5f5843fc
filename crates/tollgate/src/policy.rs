//! The parts of a [`Policy`](crate::Policy): algorithms and their settings, leases, calendars and
//! costs.
//!
//! Most programs need only the constructors of [`Policy`](crate::Policy), for example
//! [`Policy::token_bucket`](crate::Policy::token_bucket). This module has the types behind them.

#[cfg(feature = "calendar")]
#[doc(inline)]
pub use tollgate_calendar as calendar;
pub use tollgate_core::{
    Algorithm, Calendar, CalendarError, Cost, Kind, LeakyMode, Lease, NegativeCost, OnStoreError,
    Period, PolicyError, Refill, Resolution, Strikes,
};
