//! `cargo xtask twin`: the long comparison of the Lua twins with the Rust ones.

use crate::process::{self, Failure};
use crate::tools;

/// Command-line arguments of `cargo xtask twin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Install missing programs with sudo; root needs no such permission
    #[arg(long)]
    install: bool,
    /// The first seed: another one is another million decisions
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(tools::FOR_TESTS, args.install)?;
    // In release, because the references of long logs are copied for every decision.
    let test = ["test", "--release", "--package", "tollgate-redis", "--test", "suite"];
    let mut command = process::cargo(&test);
    command.args(["--", "twin::", "--nocapture"]).env("PATH", path).env("TOLLGATE_LONG", "1");
    command.env("TOLLGATE_SEED", args.seed.to_string());
    process::run(&mut command)
}
