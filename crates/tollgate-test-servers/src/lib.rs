//! Servers that a test starts itself, and ways to break them.
//!
//! | | |
//! |---|---|
//! | [`Redis`] | one server: plain, with passwords, TLS or a memory limit, or as a replica |
//! | [`Cluster`] | masters and replicas, failovers, and slot migrations step by step |
//! | [`Sentinels`] | a master, its replicas, and the sentinels that monitor them |
//! | [`Proxy`] | a TCP proxy that delays, drops or cuts the traffic between client and server |
//! | [`Client`] | a client that sends commands to any of them |
//!
//! Servers listen on free ports of 127.0.0.1 or on a socket in a temporary folder. They have no
//! persistence by default. A server ends when its handle is dropped, when the test panics and
//! when the test is killed. No call needs an async runtime, and servers keep running while a
//! test blocks its runtime.
//!
//! Every error here is a failure of the test, so the functions panic with a message.
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
/// Records that a test checks nothing, for example because the server lacks a command.
pub use tollgate_store_tests::skip;
pub use wait::{until, until_async};
