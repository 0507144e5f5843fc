//! `cargo xtask bench`: the benchmarks, in the profile they are meant for.

use crate::process::{self, Failure};

/// Command-line arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmarks to run; all of them by default
    names: Vec<String>,
    /// Arguments for the benchmark, for example `gateway -- --rounds 1`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // All of its programs first, because the one that is run starts others: to count
    // allocations, and the gateway.
    let is_meant = |name: &str| args.names.is_empty() || args.names.iter().any(|it| it == name);
    let package = ["--profile", "bench", "--package", "tollgate-bench"];
    process::run(process::cargo(&["build"]).args(package))?;
    if is_meant("layer") {
        // By itself: built together, all of them would have the feature.
        let metered = ["--features", "metrics", "--bin", "tollgate-bench-metered"];
        process::run(process::cargo(&["build"]).args(package).args(metered))?;
    }
    if is_meant("gateway") || is_meant("replay") {
        let gateway = ["--profile", "bench", "--package", "tollgate-gateway"];
        process::run(process::cargo(&["build"]).args(gateway))?;
    }
    let run = |name: Option<&String>| {
        process::run(process::cargo(&["run"]).args(package).arg("--").args(name).args(&args.rest))
    };
    if args.names.is_empty() {
        return run(None);
    }
    args.names.iter().try_for_each(|name| run(Some(name)))
}
