//! What those who run it are told.

use super::super::format;
use super::super::spec::{Section, Shape, default, optional, required};
use super::{TEXT, text};

pub(super) const LOG: Section = Section {
    name: "log",
    doc: "The lines on standard error. A line about a request that is part of a trace has its `trace_id`.",
    fields: &[
        default(
            "format",
            Shape::Word(&[("text", "A line for people."), ("json", "An object in each line.")]),
            "text",
            "How lines look; `--log-format` and the variable `TOLLGATE_LOG_FORMAT` go before.",
        ),
        default(
            "level",
            Shape::Word(&[
                ("error", "Errors."),
                ("warn", "And warnings."),
                ("info", "And denials in sum, reloads, start and end."),
                ("debug", "And each denial, and each connection that ends early."),
                ("trace", "Everything."),
                ("off", "Nothing."),
            ]),
            "info",
            "The level of the log; the variable `RUST_LOG`, which can tell parts apart, goes before.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const ACCESS_LOG: Section = Section {
    name: "accessLog",
    doc: "A line for each request, for `tollgate replay` and other readers. No request waits for the file: lines that it does not take in time are dropped and counted.",
    fields: &[
        optional(
            "file",
            TEXT,
            "The file. It is opened again at SIGHUP and after it was moved, as logrotate needs. Without it, standard output.",
        ),
        default(
            "format",
            Shape::Word(&[
                ("json", "An object in each line, with microseconds and the denial."),
                ("combined", "The combined format of Apache and nginx."),
            ]),
            "json",
            "How lines look.",
        ),
        default(
            "sample",
            text(format::RATIO),
            "1",
            "The part of the clients whose requests are logged: all requests of a client, or none.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const TRACING: Section = Section {
    name: "tracing",
    doc: "A span for each request and each decision, sent by OTLP: protobuf over HTTP.",
    fields: &[
        required(
            "endpoint",
            text(format::TARGET),
            "The URL of the collector, as http://localhost:4318; `/v1/traces` is added unless it stands there.",
        ),
        default(
            "sample",
            text(format::RATIO),
            "1",
            "The part of traces begun here that is sent. For other traces the sender has decided.",
        ),
        optional(
            "headers",
            text(format::FIELDS),
            "Header fields for the collector, as `name=value,name=value` with `%2C` for a comma in a value; best from a variable.",
        )
        .secret(),
        default("serviceName", TEXT, "tollgate", "The name of this gateway in traces."),
        default(
            "timeout",
            Shape::Span,
            "3s",
            "How long the collector may take for a batch, and for what is left when the program stops.",
        ),
    ],
    either: &[],
    others: None,
};
