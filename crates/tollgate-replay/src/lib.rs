//! Replays recorded requests against the limits of Tollgate.

#[cfg(feature = "log")]
pub mod log;
