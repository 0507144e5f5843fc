//! Limits for calls and waiting requests.

use std::time::Duration;

/// Limits for calls and waiting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The maximum number of concurrent calls.
    pub(crate) calls: usize,
    /// The maximum number of requests per call.
    pub(crate) batch: usize,
    /// The maximum number of waiting requests.
    pub(crate) queue: usize,
    /// The longest time from a request to its answer.
    pub(crate) timeout: Duration,
}
