use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use tracing::level_filters::LevelFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlan {
    pub format: LogFormat,
    /// The level, unless `RUST_LOG` sets it.
    pub level: LevelFilter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: LevelFilter::INFO }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogPlan {
    pub file: Option<PathBuf>,
    pub format: AccessLogFormat,
    /// The fraction of clients for which requests are logged, from 0 to 1.
    pub sample: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Combined,
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TracingPlan {
    pub endpoint: Uri,
    /// The fraction of traces that are sent if they start here, from 0 to 1.
    pub sample: f64,
    /// Header fields for the collector, marked as sensitive so their values are never printed.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub service_name: String,
    pub timeout: Duration,
}
