//! Metrics for decisions, and reports on stores and policies for operators, with the feature
//! `metrics`. [`Origin`] needs no feature.
//!
//! The metrics use the facade of the crate [`metrics`](https://docs.rs/metrics), which forwards
//! them to the program's recorder. Counting adds about 100 ns to a request in memory. Install the
//! recorder before the first request, and configure the histogram `buckets`:
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
//! Keys, paths and users never become labels, so the operator's configuration bounds the number of
//! series.
//!
//! Gauges for a store's size and a quota's remaining units do not update by themselves. Call
//! `refresh` before each read of the metrics. The `tollgate-admin` router does so.
//!
//! # The source
//!
//! | file | content |
//! |---|---|
//! | `metric.rs` | the metrics with their labels and descriptions |
//! | `outcome.rs` | a request's outcome at a policy |
//! | `observer.rs` | the counts that layers share |
//! | `policy.rs` | a policy's counts |
//! | `endpoint.rs` | a bounded set of endpoint names |
//! | `top.rs` | the most denied clients |
//! | `service.rs` | a called service's quota, and pauses |
//! | `timer.rs` | decision durations |
//! | `report.rs`, `refresh.rs` | store reports, and the gauges set from them |
//! | `origin.rs` | addresses of admin pages |

#[cfg(feature = "metrics")]
mod endpoint;
#[cfg(feature = "metrics")]
mod metric;
#[cfg(feature = "metrics")]
mod observer;
mod origin;
mod outcome;
#[cfg(feature = "metrics")]
mod policy;
#[cfg(feature = "metrics")]
mod refresh;
#[cfg(feature = "metrics")]
mod report;
#[cfg(feature = "metrics")]
mod service;
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
pub use self::origin::{Origin, OriginError};
pub(crate) use self::outcome::{CountedOutcome, PauseSource, source_name};
#[cfg(feature = "metrics")]
pub(crate) use self::policy::Waiting;
#[cfg(feature = "metrics")]
pub use self::policy::{ObservedPolicy, most_denied};
#[cfg(feature = "metrics")]
pub use self::refresh::refresh;
#[cfg(feature = "metrics")]
pub use self::report::{Counters, Inspect, ServerReport, StoreReport};
#[cfg(feature = "metrics")]
pub use self::service::{CurrentPause, ServiceNumbers};
#[cfg(feature = "metrics")]
pub(crate) use self::timer::{Started, Timer};
#[cfg(feature = "metrics")]
pub use self::top::DeniedClient;
#[cfg(feature = "metrics")]
pub use crate::layer::LayerHandle;
