//! `cargo xtask bench`: the benchmarks, in the profile they are meant for.

use crate::process::{self, Failure};

/// What can be said on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this benchmark; without a name, all of them
    name: Option<String>,
    /// What the benchmark takes, as in `gateway -- --rounds 1`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // All of its programs first, because the one that is run starts others: to count
    // allocations, and the gateway.
    let package = ["--profile", "bench", "--package", "tollgate-bench"];
    process::run(process::cargo(&["build"]).args(package))?;
    if args.name.as_ref().is_none_or(|name| name == "layer") {
        // By itself: built together, all of them would have the feature.
        let metered = ["--features", "metrics", "--bin", "tollgate-bench-metered"];
        process::run(process::cargo(&["build"]).args(package).args(metered))?;
    }
    if args.name.as_ref().is_none_or(|name| matches!(&**name, "gateway" | "replay")) {
        let gateway = ["--profile", "bench", "--package", "tollgate-gateway"];
        process::run(process::cargo(&["build"]).args(gateway))?;
    }
    process::run(process::cargo(&["run"]).args(package).arg("--").args(&args.name).args(&args.rest))
}
