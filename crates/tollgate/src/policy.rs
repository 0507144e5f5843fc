//! The parts of a [`Policy`](crate::Policy): algorithms and their settings, leases and calendars;
//! and the error of a [`Cost`](crate::Cost).
//!
//! Most programs need only the constructors of [`Policy`](crate::Policy), for example
//! [`Policy::token_bucket`](crate::Policy::token_bucket). This module has the types behind them.

pub use tollgate_core::{
    Algorithm, Calendar, CalendarError, Kind, LeakyMode, Lease, NegativeCost, Period, Refill,
    Resolution,
};
