//! The configuration file, from outside: what it means, what is said about wrong ones, and
//! that schema, documentation and reader agree.
#![expect(clippy::unwrap_used, reason = "all of it is tests, also what stands around `#[test]`")]

mod bounds;
mod cli;
mod containers;
mod corpus;
mod documentation;
mod meaning;
mod metrics;
mod named_files;
#[cfg(unix)]
mod rate_limits;
mod reference;
mod replay;
mod schema;
mod support;
