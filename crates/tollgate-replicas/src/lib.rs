//! The whole without containers: Redis, replicas of the demo, and nginx before them with the
//! configuration that `docker-compose.yml` uses too.
//!
//! | | |
//! |---|---|
//! | [`Set`] | all of it, on ports that are given or claimed |
//! | [`Replica`] | one replica; may be killed and started again on its port |
//! | [`Nginx`] | the balancer |
//! | [`Port`] | a port that no other test takes |
//! | [`Process`] | what they are made of: a program that ends with its handle |
//!
//! `cargo xtask up` and `cargo xtask boundary`, the tests of the whole and a benchmark start
//! their processes here. What goes wrong is a [`Failure`], which is one line.
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

/// What went wrong, where, and the cure, in one line.
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
