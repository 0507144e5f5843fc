//! Tests a service's rate limits with simulated requests, clients and time.
//!
//! A [`Test`] sends [`Requests`] and states the [expected](Expected) outcomes. [`Simulation`] runs
//! it with your service and its real [`RateLimitLayer`](tollgate::RateLimitLayer) or
//! [`Limiter`](tollgate::Limiter). An hour takes milliseconds, and each run gives the same result.
//! A failed test prints the shortest history that shows the failure.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, routing::post};
//! use tollgate::{Limit, Policy, Quota, RateLimitLayer, Store, key::ClientIp};
//! use tollgate_testing::{Expected, Requests, Simulation, Test};
//!
//! fn app(store: impl Store) -> Router {
//!     let policy = Policy::token_bucket("login", Quota::per_minute(5)).unwrap();
//!     let limit = Limit::new(policy, ClientIp::peer());
//!     let layer = RateLimitLayer::builder(store).limit(limit).build().unwrap();
//!     Router::new().route("/login", post(|| async { "welcome" })).layer(layer)
//! }
//!
//! let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
//! let requests = Requests::post("/login").every(second).during(hour);
//! let test = Test::new("a password cannot be guessed quickly")
//!     .send(requests.expect(Expected::denied_by("login")))
//!     .expect(Expected::allowed(..=305));
//! Simulation::of(app).assert(&test);
//! ```
//!
//! # Features
//!
//! * `service` (default): [`Simulation`]
//! * `yaml`: `read`, for the file format of `tollgate test`
//! * `log`: `recorded`, for requests from an access log

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "service")]
mod checks;
#[cfg(feature = "service")]
mod clock;
#[cfg(feature = "yaml")]
mod file;
#[cfg(any(feature = "service", feature = "yaml"))]
mod gateway;
#[cfg(feature = "log")]
mod recorded;
#[cfg(feature = "service")]
mod response;
#[cfg(feature = "service")]
mod service;

#[cfg(feature = "yaml")]
pub use self::file::{ReadError, read, test_of};
#[cfg(feature = "log")]
pub use self::recorded::{Recorded, RecordedError, recorded};
#[cfg(feature = "service")]
pub use self::service::{Simulation, TestStore};

pub use tollgate_core::Micros;
/// Readers of access logs.
#[cfg(feature = "log")]
pub use tollgate_replay::log;
pub use tollgate_replay::scenario::{Amount, Expected, Failed, Pace, Requests, Row, Sender, Test};
