//! Servers that a test starts itself, and ways to break them.
//!
//! | | |
//! |---|---|
//! | [`Redis`] | one server: plain, with passwords, TLS, a memory limit, a master |
//! | [`Cluster`] | masters and replicas, failovers, and slots that move step by step |
//! | [`Sentinels`] | a master, its replicas, and the sentinels that watch them |
//! | [`Proxy`] | stands between a client and a server, and delays, swallows or cuts |
//! | [`Client`] | says a command to any of them |
//!
//! Everything listens on free ports of 127.0.0.1 or on a socket in a folder of its own,
//! keeps nothing unless asked to, and ends with its handle: also when the test panics, and
//! also when the test is killed. No call needs an async runtime, and none stands still
//! because the runtime of a test does.
//!
//! Whatever goes wrong here is a failure of the test, so it panics and says what to do.
#![cfg(unix)]

mod client;
mod cluster;
mod process;
mod proxy;
mod redis;
mod sentinel;
mod wait;

pub use client::{Client, Value};
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use proxy::{Flow, Proxy, Tally};
pub use redis::{Redis, RedisBuilder};
pub use sentinel::{Sentinels, SentinelsBuilder};
pub use wait::until;
