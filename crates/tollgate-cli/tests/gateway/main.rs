//! Runs the gateway as a separate process between real clients and real upstreams.
//!
//! Unix only, because the tests use signals, symlinks and `/proc`.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

mod access_log;
mod authentication;
mod cases;
mod clients;
mod configuration;
mod connections;
mod decision_api;
mod encryption;
mod explaining;
mod files;
mod first_run;
mod forwarding;
mod fronts;
mod http1;
mod http2;
mod leaving;
mod levels;
mod limits;
mod logging;
mod logins;
mod migrating;
mod model_servers;
mod models;
mod operators;
mod overriding;
mod pausing;
mod products;
mod protection;
mod rate_limit_service;
mod rate_limits;
mod replaying;
mod sharing;
mod simulating;
mod smuggling;
mod soak;
mod spellings;
mod standing;
mod strangers;
mod streams;
mod support;
mod tenants;
mod timeouts;
mod together;
mod tokens;
#[cfg(feature = "otlp")]
mod tracing;
mod unread;
mod upgrades;
mod uploads;
mod upstreams;
