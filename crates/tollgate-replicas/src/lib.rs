//! The demo without containers: Redis, three replicas of the demo program, and nginx as the load
//! balancer. nginx uses the same configuration as in `docker-compose.yml`.
//!
//! | | |
//! |---|---|
//! | [`Set`] | all of these programs, on given or free ports |
//! | [`Replica`] | a replica; can be killed and restarted on its port |
//! | [`Nginx`] | the load balancer |
//! | [`Port`] | a port that no other test uses |
//! | [`Process`] | a program that is stopped when its handle is dropped |
//!
//! `cargo xtask up`, the end-to-end tests and a benchmark start their processes with this crate.
//! Every error is a one-line [`Failure`].
#![cfg(unix)]

mod http;
mod nginx;
mod port;
mod process;
mod program;
mod redis;
mod replica;
mod set;

use std::fmt;

pub use nginx::Nginx;
pub use port::Port;
pub use process::Process;
pub use program::find;
pub use redis::Redis;
pub use replica::{Plan, Replica};
pub use set::{Admin, Order, Set};

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
