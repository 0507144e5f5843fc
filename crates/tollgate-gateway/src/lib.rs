//! The `tollgate` program: a rate limiter for people who do not write Rust.
//!
//! A YAML file becomes a [`plan::Plan`]: plain, fully checked data, which the server uses without
//! further checks.

#![expect(missing_docs, reason = "a program: its modules are public for tests and fuzzing")]

pub mod cli;
mod count;
mod flow;
pub mod log;
mod meter;
pub mod metric;
mod problem;
pub mod proxy;
pub mod replay;
pub mod serve;
pub mod signatures;
pub mod trace;
