use tracing::level_filters::LevelFilter;

use crate::plan::{AccessLogFormat, LogFormat};

use super::super::{format, spec, typed};
use typed::{Hidden, Time, Written, section, words};

section! {
    /// The lines on standard error. A line about a request that is part of a trace has its
    /// `trace_id`.
    Log = "log" {
        /// How lines look; `--log-format` and the variable `TOLLGATE_LOG_FORMAT` go before.
        default format: LogForm = "text",
        /// The level of the log; the variable `RUST_LOG`, which can tell parts apart, goes before.
        default level: LogLevel = "info",
    }

    /// A line for each request, for `tollgate replay` and other readers. No request waits for the
    /// file: lines that it does not take in time are dropped and counted.
    AccessLog = "accessLog" {
        /// The file. It is opened again at SIGHUP and after it was moved, as logrotate needs.
        /// Without it, standard output.
        optional file: format::Text,
        /// How lines look.
        default format: AccessLogForm = "json",
        /// The part of the clients whose requests are logged: all requests of a client, or none.
        default sample: format::Ratio = "1",
    }

    /// A span for each request and each decision, sent by OTLP: protobuf over HTTP.
    Tracing = "tracing" {
        /// The URL of the collector, as http://localhost:4318; `/v1/traces` is added unless it
        /// stands there.
        required endpoint: Written<format::Target>,
        /// The part of traces begun here that is sent. For other traces the sender has decided.
        default sample: format::Ratio = "1",
        /// Header fields for the collector, as `name=value,name=value` with `%2C` for a comma in a
        /// value; best from a variable.
        optional headers: Hidden<format::Fields>,
        /// The name of this gateway in traces.
        default service_name: format::Text = "tollgate",
        /// How long the collector may take for a batch, and for what is left when the program
        /// stops.
        default timeout: Time = "3s",
    }
}

words! {
    LogForm -> LogFormat {
        /// A line for people.
        "text" => LogFormat::Text,
        /// An object in each line.
        "json" => LogFormat::Json,
    }

    LogLevel -> LevelFilter {
        /// Errors.
        "error" => LevelFilter::ERROR,
        /// And warnings.
        "warn" => LevelFilter::WARN,
        /// And denials in sum, reloads, start and end.
        "info" => LevelFilter::INFO,
        /// And each denial, and each connection that ends early.
        "debug" => LevelFilter::DEBUG,
        /// Everything.
        "trace" => LevelFilter::TRACE,
        /// Nothing.
        "off" => LevelFilter::OFF,
    }

    AccessLogForm -> AccessLogFormat {
        /// An object in each line, with microseconds and the denial.
        "json" => AccessLogFormat::Json,
        /// The combined format of Apache and nginx.
        "combined" => AccessLogFormat::Combined,
    }
}
