//! `tollgate`: see `tollgate --help`.

use std::process::ExitCode;

use clap::Parser;
use tollgate_gateway::cli::Cli;

fn main() -> ExitCode {
    // Standard output is closed by readers such as `head`; this is not a failure.
    Cli::parse().run().unwrap_or(ExitCode::SUCCESS)
}
