//! The gateway's metrics, in addition to the library's.

use tollgate::observe::{self, Metric};

/// All metrics that the gateway serves, starting with the library's.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    observe::METRICS.iter().chain(METRICS)
}

/// From an in-memory service to one that almost times out.
const SERVING: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

const METRICS: &[Metric] = &[
    Metric::gauge("tollgate_config_version", &[], "Version of the active configuration."),
    Metric::gauge(
        "tollgate_config_loaded_timestamp_seconds",
        &[],
        "Time when the active configuration was loaded, in seconds since 1970.",
    ),
    Metric::gauge("tollgate_config_current", &[], "0 if the last reload failed, otherwise 1."),
    Metric::counter("tollgate_config_reload_failures_total", &[], "Reloads that failed."),
    Metric::counter(
        "tollgate_jwks_fetches_total",
        &["outcome"],
        "Fetches of a key set by URL. outcome: fetched, or failed (the previous keys remain).",
    ),
    Metric::gauge(
        "tollgate_jwks_fetched_timestamp_seconds",
        &[],
        "Time when the current key set was fetched, in seconds since 1970.",
    ),
    Metric::gauge("tollgate_gateway_connections", &[], "Open client connections."),
    Metric::counter(
        "tollgate_gateway_full_total",
        &[],
        "Times that a listener reached its connection limit and new connections had to wait.",
    ),
    Metric::counter(
        "tollgate_gateway_refused_total",
        &[],
        "Connections closed because their address reached its connection limit.",
    ),
    Metric::counter(
        "tollgate_gateway_invalid_heads_total",
        &[],
        "Requests whose head is not valid HTTP or too large. They belong to no route.",
    ),
    Metric::counter(
        "tollgate_gateway_access_log_dropped_total",
        &[],
        "Access log lines that were dropped because the queue was full or writing failed.",
    ),
    Metric::gauge("tollgate_gateway_tunnels", &[], "Open upgraded connections."),
    Metric::counter(
        "tollgate_gateway_requests_total",
        &["route", "status"],
        "Answered requests per route. status: 1xx to 5xx.",
    ),
    Metric::histogram(
        "tollgate_gateway_request_duration_seconds",
        &["route"],
        SERVING,
        "Time from a request's header to the header of the response.",
    ),
    Metric::counter(
        "tollgate_gateway_upstream_requests_total",
        &["upstream", "status"],
        "Requests that an upstream server answered. status: 1xx to 5xx.",
    ),
    Metric::histogram(
        "tollgate_gateway_upstream_duration_seconds",
        &["upstream"],
        SERVING,
        "Time until an upstream server sent the header of its response.",
    ),
    Metric::counter(
        "tollgate_gateway_upstream_failures_total",
        &["upstream"],
        "Requests without a valid response from an upstream server.",
    ),
    Metric::gauge(
        "tollgate_gateway_upstream_up",
        &["upstream"],
        "0 while an upstream server receives no requests because of failures or health checks.",
    ),
    Metric::counter(
        "tollgate_gateway_rate_limit_service_total",
        &["domain", "outcome"],
        "Answers to Envoy per domain. outcome: ok, over_limit, error.",
    ),
    Metric::counter(
        "tollgate_trace_spans_total",
        &["outcome"],
        "Spans of the gateway. outcome: exported, dropped (the queue was full), failed (the collector did not accept the span).",
    ),
];
