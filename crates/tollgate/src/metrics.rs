//! The metrics of Tollgate, with their labels and meanings.
//!
//! They go through the facade of the crate [`metrics`](https://docs.rs/metrics) to the recorder of
//! the program. Counting adds about 100 ns to a request in memory. Install the recorder before
//! the first request, and give it the [`buckets`] of histograms:
//!
//! ```
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! let mut builder = PrometheusBuilder::new();
//! for (name, buckets) in tollgate::metrics::buckets() {
//!     builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
//! }
//! let recorder = builder.build_recorder();
//! let handle = recorder.handle(); // `handle.render()` is what Prometheus reads.
//! metrics::set_global_recorder(recorder).ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No key, path or user becomes a label: the operator's configuration bounds the number of series.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// The name, kind and meaning of a metric that Tollgate records.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name of the metric in Prometheus.
    pub name: &'static str,
    /// The kind of the metric: counter, gauge or histogram.
    pub kind: MetricKind,
    /// The labels of the metric, all with few values.
    pub labels: &'static [&'static str],
    /// The meaning of the metric.
    pub help: &'static str,
    /// The upper bounds of the buckets of a histogram.
    pub buckets: &'static [f64],
}

/// The kind of a metric: counter, gauge or histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is counted by size.
    Histogram,
}

impl MetricKind {
    /// Returns the name of this kind of metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Returns the names of the histograms with the upper bounds of their buckets.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    ALL.iter().filter(|it| !it.buckets.is_empty()).map(|it| (it.name, it.buckets))
}

/// Sends the meanings of the metrics to the recorder. Layers call it.
pub fn describe() {
    for metric in ALL {
        let Metric { name, kind, help, .. } = *metric;
        let unit = if name.contains("_seconds") { Unit::Seconds } else { Unit::Count };
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, help),
            MetricKind::Gauge => describe_gauge!(name, unit, help),
            MetricKind::Histogram => describe_histogram!(name, unit, help),
        }
    }
}

pub(crate) mod name {
    pub(crate) const DECISIONS: &str = "tollgate_decisions_total";
    pub(crate) const UNITS: &str = "tollgate_units_charged_total";
    pub(crate) const DECISION_DURATION: &str = "tollgate_decision_duration_seconds";
    pub(crate) const WAITING: &str = "tollgate_waiting_requests";
    pub(crate) const WAIT: &str = "tollgate_wait_seconds";
    pub(crate) const REMAINING: &str = "tollgate_remaining_units";
    pub(crate) const LIMIT: &str = "tollgate_limit_units";
    pub(crate) const AVAILABLE: &str = "tollgate_store_available";
    pub(crate) const BREAKER: &str = "tollgate_breaker_open";
    pub(crate) const KEYS: &str = "tollgate_memory_keys";
    pub(crate) const BYTES: &str = "tollgate_memory_bytes";
    pub(crate) const OVERFLOWED: &str = "tollgate_memory_overflowed_total";
    pub(crate) const LISTED: &str = "tollgate_listed_requests_total";
    pub(crate) const REDIS_QUEUED: &str = "tollgate_redis_queued_requests";
}

/// From a decision in memory to one that timed out.
const DECIDING: &[f64] = &[
    0.000_001, 0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.5,
];
/// From a service in memory to one that is about to be given up.
const SERVING: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const WAITS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const BATCHES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// The kind, the name, the labels, and the buckets of a histogram; below them the meaning.
macro_rules! metrics {
    (@buckets) => { &[] };
    (@buckets $buckets:ident) => { $buckets };
    ($($kind:ident $name:expr, [$($label:literal),*] $($buckets:ident)?: $help:literal;)*) => {
        /// All metrics, including those of `tollgate-redis` and the gateway.
        pub const ALL: &[Metric] = &[$(Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
            buckets: metrics!(@buckets $($buckets)?),
        }),*];
    };
}

metrics! {
    Counter name::DECISIONS, ["policy", "client", "endpoint", "outcome"]:
        "Decisions of a policy. outcome: allow, deny, shadow_deny (would have denied, but only watches), failed_open and failed_closed (the store could not decide), local (let pass by the store in this process, for the one that could not decide). client: user, api_key, ip, global, other. A request that one policy let pass and another denied counts at the latter alone.";
    Counter name::UNITS, ["policy", "client", "endpoint"]:
        "Units charged, before refunds.";
    Counter name::LISTED, ["list"]:
        "Requests of listed clients, which no policy decides. list: deny (refused with 403), allow (never limited).";
    Histogram name::DECISION_DURATION, ["policy", "store"] DECIDING:
        "Time from asking the store to its answer, errors included. store: its name, local, cache for a denial that was remembered, or lease for units that were leased. In memory one decision in eight is timed.";
    Gauge name::WAITING, ["policy"]:
        "Requests that wait for their turn in a leaky bucket, or for a limit whose excess waits.";
    Histogram name::WAIT, ["policy"] WAITS:
        "Time that requests have waited for their turn, those included whose client left.";
    Gauge name::REMAINING, ["policy"]:
        "Units left of a quota that all share, at the last decision or look.";
    Gauge name::LIMIT, ["policy"]:
        "The most units that such a quota grants at once.";
    Gauge name::AVAILABLE, ["store"]:
        "1 if the store can be asked: it is connected, and no breaker is open.";
    Gauge name::BREAKER, ["store"]:
        "1 while a breaker of the store is open.";
    Gauge name::KEYS, ["store"]:
        "Keys in memory. store: memory, or local for a fallback.";
    Gauge name::BYTES, ["store"]:
        "Bytes that those may take.";
    Counter name::OVERFLOWED, ["store"]:
        "Requests of new keys that found no room in memory and shared one entry.";
    Counter "tollgate_redis_calls_total", ["outcome"]:
        "Calls to Redis. outcome: answered, refused (nothing was charged), lost (it may have been).";
    Histogram "tollgate_redis_batch_requests", [] BATCHES:
        "Requests that shared a call.";
    Histogram "tollgate_redis_call_duration_seconds", [] DECIDING:
        "Time of a call, from sending to the answer.";
    Gauge name::REDIS_QUEUED, ["store"]:
        "Requests that wait for a call.";
    Counter "tollgate_redis_deny_cache_hits_total", []:
        "Requests denied without asking, as they had just been.";
    Counter "tollgate_redis_connections_total", []:
        "Times that a connection was made.";
    Counter "tollgate_redis_late_requests_total", []:
        "Requests that Redis refused because their caller had given up by then.";
    Counter "tollgate_redis_shed_requests_total", []:
        "Requests that were refused before they were sent, because no answer could come in time.";
    Gauge "tollgate_config_version", []:
        "The version of the configuration that serves.";
    Gauge "tollgate_config_loaded_timestamp_seconds", []:
        "When that was loaded, in seconds since 1970.";
    Gauge "tollgate_config_current", []:
        "0 if the last attempt to load another failed.";
    Counter "tollgate_config_reload_failures_total", []:
        "Attempts that failed.";
    Counter "tollgate_jwks_fetches_total", ["outcome"]:
        "Times that a key set at a URL was asked for. outcome: fetched, or failed (the keys before stay).";
    Gauge "tollgate_jwks_fetched_timestamp_seconds", []:
        "When the keys came that are believed, in seconds since 1970.";
    Gauge "tollgate_gateway_connections", []:
        "Connections of clients that are open.";
    Counter "tollgate_gateway_full_total", []:
        "Times that a listener had as many connections as it may have, so that others waited.";
    Counter "tollgate_gateway_refused_total", []:
        "Connections that were closed because their address had as many as it may have.";
    Counter "tollgate_gateway_access_log_dropped_total", []:
        "Lines of the access log that were lost: too many waited, or the file took none.";
    Gauge "tollgate_gateway_tunnels", []:
        "Upgraded connections that are open.";
    Counter "tollgate_gateway_requests_total", ["route", "status"]:
        "Requests of a route that were answered. status: 1xx to 5xx.";
    Histogram "tollgate_gateway_request_duration_seconds", ["route"] SERVING:
        "Time from the header of a request of a route to the header of its response.";
    Counter "tollgate_gateway_upstream_requests_total", ["upstream", "status"]:
        "Requests that a server behind the gateway answered. status: 1xx to 5xx.";
    Histogram "tollgate_gateway_upstream_duration_seconds", ["upstream"] SERVING:
        "Time until such a server sent the header of its response.";
    Counter "tollgate_gateway_upstream_failures_total", ["upstream"]:
        "Requests to which such a server gave no valid response.";
    Gauge "tollgate_gateway_upstream_up", ["upstream"]:
        "0 while such a server gets no requests because of failures or checks.";
    Counter "tollgate_gateway_rate_limit_service_total", ["domain", "outcome"]:
        "Answers to Envoy, by domain. outcome: ok, over_limit, error.";
    Counter "tollgate_trace_spans_total", ["outcome"]:
        "Spans of the gateway that were to be sent. outcome: exported, dropped (too many waited), failed (the collector did not take them).";
}
