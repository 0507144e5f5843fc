//! Logs and traces.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use tracing::level_filters::LevelFilter;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlan {
    /// How lines look.
    pub format: LogFormat,
    /// The level, unless `RUST_LOG` sets it.
    pub level: LevelFilter,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people
    #[default]
    Text,
    /// An object in each line
    Json,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: LevelFilter::INFO }
    }
}

/// A line for each request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogPlan {
    /// The file; `None` is standard output.
    pub file: Option<PathBuf>,
    /// How lines look.
    pub format: AccessLogFormat,
    /// The part of the clients whose requests are logged, from 0 to 1.
    pub sample: f64,
}

/// How lines of the access log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// An object in each line.
    Json,
}

/// Where spans of requests and decisions are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingPlan {
    /// Where they are posted to.
    pub endpoint: Uri,
    /// The part of traces begun here that is sent, from 0 to 1.
    pub sample: f64,
    /// Header fields for the collector, marked as sensitive: no value is ever printed.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The name of this gateway in traces.
    pub service_name: String,
    /// How long the collector may take.
    pub timeout: Duration,
}
