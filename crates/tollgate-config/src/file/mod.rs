//! The gateway's file: its keys, and the plan that their values describe.

pub mod format;
pub(crate) mod read;
pub mod schema;
pub mod tables;
pub(crate) mod urls;
