//! The gateway in a process of its own, between real clients and real upstreams.
//!
//! Signals, links and `/proc` are those of Unix.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

mod access_log;
mod chunks;
mod clients;
mod configuration;
mod connections;
mod encryption;
mod explaining;
mod files;
mod first_run;
mod forwarding;
mod fronts;
mod http2;
mod keys;
mod leaving;
mod limits;
mod logging;
mod operators;
mod pausing;
mod products;
mod protection;
mod rate_limits;
mod replaying;
mod sharing;
mod smuggling;
mod soak;
mod spellings;
mod strangers;
mod streams;
mod support;
mod timeouts;
mod together;
mod tokens;
#[cfg(feature = "otlp")]
mod tracing;
mod unread;
mod upgrades;
mod uploads;
mod upstreams;
