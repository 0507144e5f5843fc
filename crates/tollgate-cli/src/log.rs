use std::io::{self, IsTerminal};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use tollgate_config::plan::{LogFormat, LogPlan};
use tollgate_gateway::trace::Tracing;

/// Starts the log, and passes spans to the exporter.
pub(crate) fn start(plan: &LogPlan, tracing: &Tracing) -> Result<(), String> {
    let filter = match std::env::var(VARIABLE).ok().filter(|value| !value.is_empty()) {
        Some(value) => EnvFilter::try_new(&value).map_err(|error| {
            format!(
                "{VARIABLE} '{value}': {error}; use a level such as `info`, or `tollgate=debug` [TG0415]"
            )
        })?,
        None => EnvFilter::default().add_directive(plan.level.into()),
    };
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match plan.format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        // The request is the only span, so a list of spans adds no information.
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let subscriber = Registry::default().with(lines.with_filter(filter));
    #[cfg(feature = "otlp")]
    if let Some(export) = tracing.export() {
        subscriber.with(tollgate_gateway::trace::layer(export)).init();
        return Ok(());
    }
    let _ = tracing;
    subscriber.init();
    Ok(())
}

const VARIABLE: &str = "RUST_LOG";
