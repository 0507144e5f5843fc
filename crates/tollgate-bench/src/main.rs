//! What a decision costs: `cargo xtask bench [NAME]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::run()
}
