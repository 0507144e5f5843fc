//! All server tests share this test binary, because linking another binary takes time.
#![cfg(unix)]

mod cluster;
mod proxy;
mod redis;
mod sentinels;
