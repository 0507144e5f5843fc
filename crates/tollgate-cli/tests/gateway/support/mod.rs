//! The gateway as a process, upstreams, and clients.

#[cfg(feature = "otlp")]
mod collector;
pub(crate) mod frames;
mod gateway;
mod raw;
mod upstream;

use std::env;
use std::process::Command;
use std::time::Duration;

pub(crate) use tollgate_test_servers::http::{Answer, Client};
use tollgate_test_servers::until_async;

#[cfg(feature = "otlp")]
pub(crate) use self::collector::{Collector, Sent};
pub(crate) use self::frames::{Outcome, RawHttp2};
pub(crate) use self::gateway::{Gateway, TOKEN, whole};
pub(crate) use self::raw::{
    RawClient, RawUpstream, connect_from, exchange, exchange_bytes, exchange_from, listen,
};
pub(crate) use self::upstream::{Reply, Seen, Upstream};

/// Whether tests may use a lot of memory and take several minutes.
pub(crate) fn is_heavy() -> bool {
    env::var("TOLLGATE_HEAVY").is_ok_and(|value| value == "1")
}

/// The hash of an API key.
pub(crate) fn sha256(text: &str) -> String {
    let sum = Command::new("bash")
        .args(["-c", &format!("printf %s {text} | sha256sum")])
        .output()
        .unwrap();
    String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
}

/// Repeats `is_so` until it returns true. A failure names the condition `what`.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    until_async(what, PATIENCE, async || is_so().await.then_some(())).await;
}

/// No step takes this long in a passing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
