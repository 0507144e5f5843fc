//! Three replicas behind nginx with one quota in Redis, as real processes.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

#[path = "../common/client.rs"]
mod client;
mod clocks;
mod exact;
mod leased;
mod outages;
mod proxy;
mod restarts;
mod scenario;
mod support;
