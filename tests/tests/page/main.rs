//! The live page in a browser, over real processes.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

#[path = "../common/client.rs"]
mod client;

mod browser;
mod forms;
mod moves;
mod picture;
mod support;
