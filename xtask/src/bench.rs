//! `cargo xtask bench`: the benchmarks, in the profile they are meant for.

use crate::process::{self, Failure};

/// What can be said on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this benchmark; without a name, all of them
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut command = process::cargo(&["run", "--release", "--package", "tollgate-bench", "--"]);
    process::run(command.args(&args.name))
}
