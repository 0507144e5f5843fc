//! The `tollgate` program: a rate limiter for people who do not write Rust.
//!
//! A YAML file becomes a [`plan::Plan`]: plain, fully checked data, which the server uses without
//! further checks.

#![expect(missing_docs, reason = "a program: its modules are public for tests and fuzzing")]

pub mod check;
pub mod cli;
pub mod config;
mod count;
pub mod files;
mod flow;
pub mod log;
mod meter;
pub mod metric;
pub mod plan;
mod problem;
pub mod proxy;
pub mod replay;
pub mod schema;
pub mod serve;
pub mod signatures;
pub mod trace;
