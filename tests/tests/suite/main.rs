//! A single test binary for all end-to-end tests, because each binary is linked separately.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    reason = "the lint exempts only functions with a test attribute, not their helpers"
)]

mod demo;
#[cfg(target_os = "linux")]
mod examples;
mod gateway;
mod observed;
mod page;
mod products;
mod whole;
