//! Tests of the program's commands and of the files that describe it.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

mod cases;
mod cli;
mod command_page;
mod containers;
mod error_codes;
mod gate;
mod metrics;
mod named_files;
mod replay;
mod support;
mod testing;
mod translations;
