//! The gateway as a binary of this package, because Cargo sets `CARGO_BIN_EXE_*` only for binaries
//! of the test's own package.

use std::process::ExitCode;

use clap::Parser;
use tollgate_cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or(ExitCode::SUCCESS)
}
