//! Redis servers that tests start themselves, and ways to break them.
//!
//! | | |
//! |---|---|
//! | [`Redis`] | a single server: plain, with passwords, TLS or a memory limit, or as a replica |
//! | [`Cluster`] | masters and replicas, failovers, and slot migrations step by step |
//! | [`Sentinels`] | a master, its replicas, and the sentinels that monitor them |
//! | [`Proxy`] | a TCP proxy that delays, drops or cuts the traffic between client and server |
//! | [`Recorder`] | a relay that records the commands that a server executed |
//! | [`RedisClient`] | a client that sends commands to these servers |
//!
//! Servers listen on free ports of 127.0.0.1 or on a socket in a temporary folder, by default
//! without persistence. A server is killed when its handle is dropped, when the test panics, or
//! when the test itself is killed. No call needs an async runtime except [`until_async`], and
//! servers keep running while a test blocks its runtime.
//!
//! An error here means that the test has failed, so the functions panic with a message.
#![cfg(unix)]

mod client;
mod cluster;
#[cfg(feature = "http")]
pub mod http;
mod process;
mod proxy;
mod recorder;
mod redis;
mod sentinel;
mod wait;

pub use client::{RedisClient, Value};
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use proxy::{Flow, Proxy, Tally};
pub use recorder::{Exchange, Recorder};
pub use redis::{Redis, RedisBuilder};
pub use sentinel::{Sentinels, SentinelsBuilder};
/// Records that a test was skipped, for example because the server lacks a command.
pub use tollgate_store_tests::skip;
pub use wait::{until, until_async};
