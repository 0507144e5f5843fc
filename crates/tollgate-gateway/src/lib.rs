//! The `tollgate` program: a rate limiter for people who do not write Rust.
//!
//! A YAML file becomes a [`plan::Plan`]: plain data in which nothing is left to check.
//! Whoever serves takes it as it is.

pub mod check;
pub mod cli;
pub mod config;
pub mod files;
mod flow;
pub mod log;
mod meter;
pub mod plan;
pub mod proxy;
pub mod replay;
pub mod schema;
pub mod serve;
pub mod trace;
