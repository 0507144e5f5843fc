//! `cargo xtask twin`: the twin test with a million decisions, which compares the Lua port with the
//! Rust functions.

use crate::process::{self, Failure};
use crate::tools;

/// Command-line arguments of `cargo xtask twin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Install missing programs with sudo; not needed if you are root
    #[arg(long)]
    install: bool,
    /// The seed that a failed run printed, to repeat it; by default each run has a different seed
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(&tools::TESTS, args.install)?;
    // In release, because the reference states of long logs are copied for every decision.
    let test = ["test", "--release", "--package", "tollgate-redis", "--test", "suite"];
    let mut command = process::cargo(&test);
    command.args(["--", "twin::", "--nocapture"]).env("PATH", path).env("TOLLGATE_LONG", "1");
    if let Some(seed) = args.seed {
        command.env("TOLLGATE_SEED", seed.to_string());
    }
    process::run(&mut command)
}
