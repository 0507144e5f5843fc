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

#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogPlan {
    pub file: Option<PathBuf>,
    pub format: AccessLogFormat,
    /// The part of the clients whose requests are logged, from 0 to 1.
    pub sample: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Combined,
    /// An object in each line.
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TracingPlan {
    pub endpoint: Uri,
    /// The part of traces begun here that is sent, from 0 to 1.
    pub sample: f64,
    /// Header fields for the collector, marked as sensitive: no value is ever printed.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub service_name: String,
    pub timeout: Duration,
}
