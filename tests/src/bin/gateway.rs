//! The gateway, under a name of this package: cargo tells a test where to find a program
//! only if it is of its own package.

use std::process::ExitCode;

use clap::Parser;
use tollgate_gateway::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or(ExitCode::SUCCESS)
}
