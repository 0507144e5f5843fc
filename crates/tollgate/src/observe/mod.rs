//! Metrics of decisions, and reports of stores and policies for operators, with the feature
//! `metrics`.
//!
//! The metrics go through the facade of the crate [`metrics`](https://docs.rs/metrics) to the
//! recorder of the program. Counting adds about 100 ns to a request in memory. Install the recorder
//! before the first request, and give it the `buckets` of histograms:
//!
//! ```
//! # #[cfg(feature = "metrics")]
//! # {
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut builder = PrometheusBuilder::new();
//! for (name, buckets) in tollgate::observe::buckets() {
//!     builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
//! }
//! let recorder = builder.build_recorder();
//! let handle = recorder.handle(); // `handle.render()` is what Prometheus reads.
//! metrics::set_global_recorder(recorder).ok();
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! No key, path or user becomes a label: the operator's configuration bounds the number of series.
//!
//! The gauges for the size of a store and the remainder of a quota do not change by themselves.
//! Call `refresh` before each read of the metrics. The router of `tollgate-admin` calls it.
//!
//! # The source
//!
//! | file | content |
//! |---|---|
//! | `metric.rs` | the metrics with their labels and meanings |
//! | `outcome.rs` | the outcome of a request at one policy |
//! | `observer.rs` | the counts that layers share |
//! | `policy.rs` | the counts of one policy |
//! | `endpoint.rs` | the names of endpoints, bounded |
//! | `top.rs` | the most denied clients |
//! | `timer.rs` | times of decisions |
//! | `report.rs`, `refresh.rs` | the state of stores, and their gauges |

#[cfg(feature = "metrics")]
mod endpoint;
#[cfg(feature = "metrics")]
mod metric;
#[cfg(feature = "metrics")]
mod observer;
mod outcome;
#[cfg(feature = "metrics")]
mod policy;
#[cfg(feature = "metrics")]
mod refresh;
#[cfg(feature = "metrics")]
mod report;
#[cfg(feature = "metrics")]
mod timer;
#[cfg(feature = "metrics")]
mod top;

#[cfg(feature = "metrics")]
pub(crate) use self::endpoint::OTHER;
#[cfg(feature = "metrics")]
pub(crate) use self::metric::name;
#[cfg(feature = "metrics")]
pub use self::metric::{METRICS, Metric, MetricKind, buckets, describe};
#[cfg(feature = "metrics")]
pub use self::observer::{Denials, Observer};
pub(crate) use self::outcome::{CountedOutcome, source_name};
#[cfg(feature = "metrics")]
pub(crate) use self::policy::Waiting;
#[cfg(feature = "metrics")]
pub use self::policy::{ObservedPolicy, most_denied};
#[cfg(feature = "metrics")]
pub use self::refresh::refresh;
#[cfg(feature = "metrics")]
pub use self::report::{Counters, Inspect, ServerReport, StoreReport};
#[cfg(feature = "metrics")]
pub(crate) use self::timer::{Started, Timer};
#[cfg(feature = "metrics")]
pub use self::top::DeniedClient;
#[cfg(feature = "metrics")]
pub use crate::layer::LayerHandle;
