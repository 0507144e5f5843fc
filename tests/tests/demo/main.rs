//! The demo as its users meet it: a process, flags, signals and a connection.
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

mod admin;
#[path = "../common/client.rs"]
mod client;
mod flags;
mod keys;
mod logging;
mod quota;
mod scenario;
mod service;
mod support;
