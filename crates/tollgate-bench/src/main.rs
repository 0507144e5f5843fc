//! Runs the benchmarks: `cargo xtask bench [NAME]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::run()
}
