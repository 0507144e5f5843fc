//! `cargo xtask bench`: builds and runs the benchmarks in the `bench` profile.

use std::env;

use crate::process::{self, Failure};
use crate::tools;

/// Command-line arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmarks to run; by default all
    names: Vec<String>,
    /// Arguments for the benchmark, for example `gateway -- --rounds 1`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Build all programs first, because the benchmark starts the gateway and the program that
    // counts allocations.
    let is_meant = |name: &str| args.names.is_empty() || args.names.iter().any(|it| it == name);
    let package = ["--profile", "bench", "--package", "tollgate-bench"];
    process::run(process::cargo(&["build"]).args(package))?;
    if is_meant("layer") {
        // In a separate build, because a joint build would enable the feature in all programs.
        let metered = ["--features", "metrics", "--bin", "tollgate-bench-metered"];
        process::run(process::cargo(&["build"]).args(package).args(metered))?;
    }
    if is_meant("gateway") || is_meant("replay") {
        let gateway = ["--profile", "bench", "--package", "tollgate-cli"];
        process::run(process::cargo(&["build"]).args(gateway))?;
    }
    let mut path = env::var_os("PATH").unwrap_or_default();
    if is_meant("gateway") {
        path = tools::with_envoy(&path)?;
    }
    let mut run = process::cargo(&["run"]);
    process::run(run.env("PATH", &path).args(package).arg("--").args(&args.names).args(&args.rest))
}
