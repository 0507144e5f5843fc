//! The layer with metrics, for `tollgate-bench layer`.
//!
//! Whether the layer counts is decided when it is built. So this is a program of its own, and
//! takes its turn whenever it reads a line.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::metered()
}
