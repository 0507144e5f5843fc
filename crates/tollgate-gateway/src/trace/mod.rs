//! Traces: which one a request is part of, and what the gateway adds to it.
//!
//! | file | holds |
//! |---|---|
//! | `context.rs` | what callers say of the trace that a request is part of |
//! | `request.rs` | the span of a request |
//! | `export.rs` | from spans to a collector |
//! | `queue.rs` | how many spans wait for it, and what became of them |
//!
//! Without `tracing` in the configuration the gateway takes no part in traces: the fields of a
//! request pass as they are, and only the log tells which trace it is about.

mod context;
#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod queue;
mod request;

#[cfg(feature = "otlp")]
pub(crate) use self::export::{Export, decisions};
pub(crate) use self::request::{Traced, note_route};
use crate::plan::TracingPlan;

/// What the gateway adds to traces. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    #[cfg(feature = "otlp")]
    export: Option<Export>,
}

/// What became of spans that were to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spans {
    /// The collector has them.
    pub(crate) exported: u64,
    /// The queue was full.
    pub(crate) dropped: u64,
    /// The collector did not take them.
    pub(crate) failed: u64,
}

/// Why there are no spans where some are wanted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rateLimiter.tracing: {0}")]
pub struct TracingError(String);

impl Tracing {
    /// What a plan wants.
    ///
    /// # Errors
    /// See [`is_possible`], or the certificates of the system cannot be read.
    pub fn new(plan: Option<&TracingPlan>) -> Result<Self, TracingError> {
        is_possible(plan)?;
        #[cfg(feature = "otlp")]
        return Ok(Self { export: plan.map(Export::new).transpose()? });
        #[cfg(not(feature = "otlp"))]
        Ok(Self {})
    }

    /// What became of spans so far.
    pub(crate) fn spans(&self) -> Spans {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.export {
            return export.spans();
        }
        Spans::default()
    }

    /// Sends what is left, for as long as the plan says.
    pub(crate) fn finish(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.export {
            export.finish();
        }
    }

    #[cfg(feature = "otlp")]
    pub(crate) const fn export(&self) -> Option<&Export> {
        self.export.as_ref()
    }
}

/// Whether this build can do what a plan wants.
///
/// # Errors
/// It has no OTLP.
pub fn is_possible(plan: Option<&TracingPlan>) -> Result<(), TracingError> {
    if cfg!(feature = "otlp") || plan.is_none() {
        return Ok(());
    }
    Err(TracingError(
        "this build has no OTLP; install one with `cargo install tollgate-gateway --features \
         otlp`, or remove the section"
            .to_owned(),
    ))
}

/// The target of the span that a request has in the log.
const REQUEST: &str = "tollgate::request";
