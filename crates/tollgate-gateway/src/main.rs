//! `tollgate`: see `tollgate --help`.

use std::process::ExitCode;

use clap::Parser;
use tollgate_gateway::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
