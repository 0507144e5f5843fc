use http::Uri;
use tracing::level_filters::LevelFilter;

use crate::file::{format, urls};
use crate::yaml::typed::{Hidden, durations, section, texts, words};

section! {
    /// The log on standard error. A line about a traced request has its `trace_id`.
    #[derive(PartialEq, Eq)]
    values LogPlan = "log" {
        /// The log format. `--log-format` and the variable `TOLLGATE_LOG_FORMAT` override it.
        default format: LogForm = "text",
        /// The log level. The variable `RUST_LOG` overrides it and can set levels per module.
        default level: LogLevel = "info",
    }

    /// Writes a line for each request, which `tollgate replay` can read. Requests never wait for
    /// the file: if the disk is too slow, lines are dropped and counted.
    #[derive(PartialEq)]
    values AccessLogPlan = "accessLog" {
        /// The log file. It is reopened on SIGHUP and after a rename, which logrotate needs.
        /// Default: standard output.
        optional file: format::File,
        /// The format of the lines.
        default format: AccessLogForm = "json",
        /// The share of clients to log. The log has all requests of these clients.
        default sample: format::Ratio = "1",
    }

    /// Sends a span for each request and each decision to a collector, in OTLP over HTTP with
    /// protobuf.
    #[derive(PartialEq)]
    values TracingPlan = "tracing" {
        /// The URL of the collector, such as http://localhost:4318. `/v1/traces` is added if it is
        /// missing.
        required endpoint: Collector,
        /// The share of traces to send if the trace starts in this gateway. For other traces the
        /// caller has decided.
        default sample: format::Ratio = "1",
        /// Headers for the collector: `name=value,name=value`, with `%2C` for a comma in a value.
        /// Use an environment variable for secrets.
        optional headers: Hidden<format::Fields>,
        /// The service name in traces.
        default service_name: format::Text = "tollgate",
        /// The time to send a batch, including the last batch at shutdown.
        default timeout: ExportTimeout = "3s",
    }
}

durations! {
    ExportTimeout: 10 to 60_000,
        "the program waits up to this time for the collector when it stops: 3s is plenty";
}

words! {
    LogForm -> LogFormat {
        /// Lines for people.
        "text" => LogFormat::Text,
        /// One JSON object per line.
        "json" => LogFormat::Json,
    }

    LogLevel -> LevelFilter {
        /// Errors only.
        "error" => LevelFilter::ERROR,
        /// Also warnings.
        "warn" => LevelFilter::WARN,
        /// Also denial counts, reloads, startup and shutdown.
        "info" => LevelFilter::INFO,
        /// Also each denial, and each connection that closes early.
        "debug" => LevelFilter::DEBUG,
        /// All events.
        "trace" => LevelFilter::TRACE,
        /// No log.
        "off" => LevelFilter::OFF,
    }

    AccessLogForm -> AccessLogFormat {
        /// One JSON object per line, with microseconds and the denial.
        "json" => AccessLogFormat::Json,
        /// The combined format of Apache and nginx.
        "combined" => AccessLogFormat::Combined,
    }
}

texts! {
    /// The URL for traces, with `/v1/traces` at its end.
    Collector(text) -> Uri: "a URL such as http://localhost:3000", r"^https?://[^/@?#]+(/[^?#]*)?$" =>
        format::Target::parse(text).and_then(|_| match text.trim_end_matches('/') {
            base if base.ends_with(TRACES) => urls::target(base),
            base => urls::target(&format!("{base}{TRACES}")),
        });
}

const TRACES: &str = "/v1/traces";

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Combined,
    Json,
}
