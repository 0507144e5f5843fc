//! All server tests share this test binary, because linking another binary takes time.
#![cfg(unix)]

mod processes;
#[cfg(feature = "faults")]
mod proxy;
