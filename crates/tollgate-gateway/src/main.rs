//! `tollgate`: see `tollgate --help`.

use std::process::ExitCode;

use clap::Parser;
use tollgate_gateway::cli::Cli;

fn main() -> ExitCode {
    // Whoever closes our output, as `head` does, has read enough.
    Cli::parse().run().unwrap_or(ExitCode::SUCCESS)
}
