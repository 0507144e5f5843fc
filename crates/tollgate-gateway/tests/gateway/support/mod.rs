//! The gateway as a process, upstreams, and clients.

#[cfg(feature = "otlp")]
mod collector;
pub(crate) mod frames;
mod gateway;
mod raw;
mod upstream;

use std::env;

#[cfg(feature = "otlp")]
pub(crate) use self::collector::{Collector, Sent};
pub(crate) use self::frames::{Outcome, RawHttp2};
pub(crate) use self::gateway::{Answer, Client, Gateway, pause, whole};
pub(crate) use self::raw::{RawClient, RawUpstream, exchange, exchange_bytes};
pub(crate) use self::upstream::{Seen, Upstream};

/// Whether tests may use a lot of memory and take several minutes.
pub(crate) fn is_heavy() -> bool {
    env::var("TOLLGATE_HEAVY").is_ok_and(|value| value == "1")
}
