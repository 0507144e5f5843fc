//! Tests of the configuration file: its meaning, the messages for invalid files, and the agreement
//! of schema, documentation and reader.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

mod bounds;
mod corpus;
mod documentation;
mod meaning;
mod rate_limits;
mod reference;
mod schema;
mod support;
