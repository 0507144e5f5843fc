//! Redis servers that tests start themselves, ways to break them, and the demo without containers.
//!
//! | | |
//! |---|---|
//! | [`Redis`] | a single server: plain, with passwords, TLS or a memory limit, or as a replica |
//! | [`Cluster`] | masters and replicas, failovers, and slot migrations step by step |
//! | [`Sentinels`] | a master, its replicas, and the sentinels that monitor them |
//! | [`Proxy`] | a TCP proxy that delays, drops or cuts the traffic between client and server |
//! | [`Recorder`] | a relay that records the commands that a server executed |
//! | [`RedisClient`] | a client that sends commands to these servers |
//! | [`Set`] | Redis, three [`Replica`]s of the demo and [`Nginx`], configured as in `docker-compose.yml` |
//! | [`Port`] | a port that no other test uses |
//! | [`Process`] | any other program |
//!
//! Servers listen on free ports of 127.0.0.1 or on a socket in a temporary folder, by default
//! without persistence. A program is stopped when its handle is dropped, when the test panics, or
//! when the test itself is killed. No call needs an async runtime except [`until_async`], and
//! servers keep running while a test blocks its runtime.
//!
//! A Redis server's error means that a test has failed, so most functions panic with a message.
//! `cargo xtask up` prints the errors of a [`Set`], so these are one-line [`Failure`]s. It needs
//! only the programs, so it does without the default feature `faults`.
#![cfg(unix)]

mod client;
mod cluster;
#[cfg(feature = "http")]
pub mod http;
mod nginx;
mod port;
mod process;
mod program;
#[cfg(feature = "faults")]
mod proxy;
mod recorder;
mod redis;
mod replica;
mod sentinel;
mod set;
mod wait;

use std::fmt;

pub use client::{RedisClient, Value};
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use nginx::Nginx;
pub use port::Port;
pub use process::Process;
pub use program::find;
#[cfg(feature = "faults")]
pub use proxy::{Flow, Proxy, Tally};
pub use recorder::{Exchange, Recorder};
pub use redis::{Redis, RedisBuilder};
pub use replica::{Plan, Replica};
pub use sentinel::{Sentinels, SentinelsBuilder};
pub use set::{Admin, Order, Set};
/// Records that a test was skipped, for example because the server lacks a command.
#[cfg(feature = "faults")]
pub use tollgate_store_tests::skip;
pub use wait::until;
#[cfg(feature = "faults")]
pub use wait::until_async;

/// A one-line error: the cause, the place and how to fix it.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
