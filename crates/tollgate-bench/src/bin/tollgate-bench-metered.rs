//! The layer with metrics, for `tollgate-bench layer`.
//!
//! Metrics are a build-time choice, so they need a separate program. It takes a turn for each line
//! that it reads.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::metered()
}
