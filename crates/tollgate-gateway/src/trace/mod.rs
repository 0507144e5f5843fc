//! Request traces, and the gateway's spans in these traces.
//!
//! Without `tracing` in the configuration, the gateway adds no spans. It forwards trace headers
//! unchanged, and its log lines contain the trace ID.

mod context;
#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod queue;
mod request;
mod spans;

use tollgate_config::plan::TracingPlan;

#[cfg(feature = "otlp")]
pub use self::export::{Export, layer};
pub(crate) use self::request::{Traced, note_route};
pub(crate) use self::spans::Spans;
pub use self::spans::TracingError;

/// The gateway's part of traces. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    #[cfg(feature = "otlp")]
    export: Option<Export>,
}

impl Tracing {
    /// Starts tracing as the plan configures it.
    pub fn new(plan: Option<&TracingPlan>) -> Result<Self, TracingError> {
        is_possible(plan)?;
        #[cfg(feature = "otlp")]
        return Ok(Self { export: plan.map(Export::new).transpose()? });
        #[cfg(not(feature = "otlp"))]
        Ok(Self {})
    }

    pub(crate) fn spans(&self) -> Spans {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.export {
            return export.spans();
        }
        Spans::default()
    }

    pub(crate) fn finish(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.export {
            export.finish();
        }
    }

    #[cfg(feature = "otlp")]
    pub const fn export(&self) -> Option<&Export> {
        self.export.as_ref()
    }
}

/// Returns whether this build supports the plan's tracing.
pub fn is_possible(plan: Option<&TracingPlan>) -> Result<(), TracingError> {
    if cfg!(feature = "otlp") || plan.is_none() {
        return Ok(());
    }
    Err(TracingError(
        "this build has no OTLP; install one with `cargo install tollgate-cli --features \
         otlp`, or remove the section"
            .to_owned(),
    ))
}
