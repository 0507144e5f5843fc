//! What `deploy/` promises: alerts that fire when they should, and panels that show something.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

#[path = "../common/client.rs"]
mod client;
mod files;
mod live;
mod prometheus;
