//! One program for all tests of the whole: each further program is linked anew.
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

mod client;
mod demo;
#[cfg(target_os = "linux")]
mod examples;
#[cfg(unix)]
mod observed;
#[cfg(unix)]
mod page;
#[cfg(unix)]
mod products;
#[cfg(unix)]
mod whole;
