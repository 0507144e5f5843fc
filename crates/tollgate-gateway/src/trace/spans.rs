#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spans {
    /// The collector accepted these.
    pub(crate) exported: u64,
    /// The queue was full.
    pub(crate) dropped: u64,
    /// The collector did not accept these.
    pub(crate) failed: u64,
}

/// The reason why tracing cannot start.
#[derive(Clone, Debug, thiserror::Error)]
#[doc(alias = "TG0413")]
#[error("rateLimiter.tracing: {0} [TG0413]")]
pub struct TracingError(pub(super) String);
