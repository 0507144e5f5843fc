//! One program for all tests of the servers: each further program is linked anew.
#![cfg(unix)]

mod cluster;
mod proxy;
mod redis;
mod sentinels;
