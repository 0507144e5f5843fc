use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// A metric's name, kind and description.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The metric's name in Prometheus.
    pub name: &'static str,
    /// The metric's kind: counter, gauge or histogram.
    pub kind: MetricKind,
    /// The metric's labels, all with few values.
    pub labels: &'static [&'static str],
    /// The metric's description.
    pub help: &'static str,
    /// The upper bucket bounds, for histograms.
    pub buckets: &'static [f64],
}

/// Whether a metric is a counter, gauge or histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// A distribution of values, counted in buckets.
    Histogram,
}

type Texts = &'static [&'static str];

impl Metric {
    /// Describes a counter with these labels.
    pub const fn counter(name: &'static str, labels: Texts, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, labels, help, buckets: &[] }
    }

    /// Describes a gauge with these labels.
    pub const fn gauge(name: &'static str, labels: Texts, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, labels, help, buckets: &[] }
    }

    /// Describes a histogram with these labels and upper bucket bounds.
    pub const fn histogram(
        name: &'static str,
        labels: Texts,
        buckets: &'static [f64],
        help: &'static str,
    ) -> Self {
        Self { name, kind: MetricKind::Histogram, labels, help, buckets }
    }

    /// Sends the metric's description to the recorder.
    pub fn describe(&self) {
        let Self { name, kind, help, .. } = *self;
        let unit = if name.contains("_seconds") { Unit::Seconds } else { Unit::Count };
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, help),
            MetricKind::Gauge => describe_gauge!(name, unit, help),
            MetricKind::Histogram => describe_histogram!(name, unit, help),
        }
    }
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

/// Returns the names of all histograms, with their upper bucket bounds.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    METRICS.iter().filter(|it| !it.buckets.is_empty()).map(|it| (it.name, it.buckets))
}

/// Sends the descriptions of [`METRICS`] to the recorder. Layers call this.
pub fn describe() {
    METRICS.iter().for_each(Metric::describe);
}

pub(crate) mod name {
    pub(crate) const DECISIONS: &str = "tollgate_decisions_total";
    pub(crate) const UNITS: &str = "tollgate_units_charged_total";
    pub(crate) const DECISION_DURATION: &str = "tollgate_decision_duration_seconds";
    pub(crate) const WAITING: &str = "tollgate_waiting_requests";
    pub(crate) const WAIT: &str = "tollgate_wait_seconds";
    pub(crate) const PAUSES: &str = "tollgate_pauses_total";
    pub(crate) const SERVICE_LIMIT: &str = "tollgate_service_limit_units";
    pub(crate) const SERVICE_REMAINING: &str = "tollgate_service_remaining_units";
    pub(crate) const REMAINING: &str = "tollgate_remaining_units";
    pub(crate) const LIMIT: &str = "tollgate_limit_units";
    pub(crate) const AVAILABLE: &str = "tollgate_store_available";
    pub(crate) const BREAKER: &str = "tollgate_breaker_open";
    pub(crate) const KEYS: &str = "tollgate_memory_keys";
    pub(crate) const BYTES: &str = "tollgate_memory_bytes";
    pub(crate) const OVERFLOWED: &str = "tollgate_memory_overflowed_total";
    pub(crate) const LISTED: &str = "tollgate_listed_requests_total";
    pub(crate) const REDIS_QUEUED: &str = "tollgate_redis_queued_requests";
    pub(crate) const REDIS_REPLICAS: &str = "tollgate_redis_replicas";
}

/// Ranges from in-memory decisions to timeouts.
const DECIDING: &[f64] = &[
    0.000_001, 0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.5,
];
const WAITS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const BATCHES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// All metrics in this crate and in `tollgate-redis`.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        name::DECISIONS,
        &["policy", "client", "endpoint", "outcome"],
        "Decisions per policy. outcome: allow, deny, shadow_deny (a shadow policy would have denied, or a soft limit is exceeded), failed_open and failed_closed (the store could not decide), local (the local fallback decided). client: user, api_key, ip, global, other. If one policy allows a request and another denies it, only the second counts it.",
    ),
    Metric::counter(
        name::UNITS,
        &["policy", "client", "endpoint"],
        "Units charged, before refunds.",
    ),
    Metric::counter(
        name::LISTED,
        &["list"],
        "Requests from listed clients, which no policy decides. list: deny (rejected with 403), allow (never limited).",
    ),
    Metric::histogram(
        name::DECISION_DURATION,
        &["policy", "store"],
        DECIDING,
        "Duration of a decision by the store, including errors. store: its name, local, cache (a remembered denial) or lease (leased units). In memory, one decision in eight is timed.",
    ),
    Metric::gauge(
        name::WAITING,
        &["policy"],
        "Requests in the wait queue of a leaky bucket or another limit.",
    ),
    Metric::histogram(
        name::WAIT,
        &["policy"],
        WAITS,
        "Time that requests spent in the wait queue, including requests that their clients cancelled.",
    ),
    Metric::counter(
        name::PAUSES,
        &["policy", "source"],
        "Pauses of keys that this process started, by a limiter's penalty. source: header (the called service named the wait), unnamed (it denied a call and named none), program (`Limiter::pause`).",
    ),
    Metric::gauge(
        name::SERVICE_LIMIT,
        &["policy"],
        "Units that the called service grants, in the last response that said so.",
    ),
    Metric::gauge(
        name::SERVICE_REMAINING,
        &["policy"],
        "Units that remain at the called service, in the last response that said so.",
    ),
    Metric::gauge(
        name::REMAINING,
        &["policy"],
        "Remaining units of a quota that all clients share, at the last decision or refresh.",
    ),
    Metric::gauge(name::LIMIT, &["policy"], "Maximum units that such a quota grants immediately."),
    Metric::gauge(
        name::AVAILABLE,
        &["store"],
        "1 if the store is connected and no breaker is open.",
    ),
    Metric::gauge(name::BREAKER, &["store"], "1 while a breaker of the store is open."),
    Metric::gauge(
        name::KEYS,
        &["store"],
        "Keys in memory. store: memory, or local for a fallback.",
    ),
    Metric::gauge(name::BYTES, &["store"], "Maximum bytes that these keys use."),
    Metric::counter(
        name::OVERFLOWED,
        &["store"],
        "Requests with new keys that found no space in memory and shared an overflow entry.",
    ),
    Metric::counter(
        "tollgate_redis_calls_total",
        &["outcome"],
        "Calls to Redis. outcome: answered, refused (not charged), lost (possibly charged).",
    ),
    Metric::histogram("tollgate_redis_batch_requests", &[], BATCHES, "Requests per call."),
    Metric::histogram(
        "tollgate_redis_call_duration_seconds",
        &[],
        DECIDING,
        "Duration of a call, from sending it to the reply.",
    ),
    Metric::gauge(name::REDIS_QUEUED, &["store"], "Requests that wait for a call."),
    Metric::gauge(
        name::REDIS_REPLICAS,
        &["store"],
        "Replicas that share the quotas and fall back to a local share. 0 if unknown.",
    ),
    Metric::counter(
        "tollgate_redis_deny_cache_hits_total",
        &[],
        "Requests denied from the deny cache, without a call.",
    ),
    Metric::counter("tollgate_redis_connections_total", &[], "Connections made to Redis."),
    Metric::counter(
        "tollgate_redis_late_requests_total",
        &[],
        "Requests that Redis did not execute because their deadline had passed.",
    ),
    Metric::counter(
        "tollgate_redis_shed_requests_total",
        &[],
        "Requests that the store shed before sending them, because the answer would have been too late.",
    ),
];
