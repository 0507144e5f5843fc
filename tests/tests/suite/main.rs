//! A single test binary for all end-to-end tests, because each binary is linked separately.
#![expect(
    clippy::unwrap_used,
    reason = "the lint exempts only functions with a test attribute, not their helpers"
)]

mod client;
mod demo;
#[cfg(target_os = "linux")]
mod examples;
#[cfg(unix)]
mod gateway;
#[cfg(unix)]
mod observed;
#[cfg(unix)]
mod page;
#[cfg(unix)]
mod products;
#[cfg(unix)]
mod whole;
