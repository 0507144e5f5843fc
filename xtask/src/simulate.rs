//! `cargo xtask simulate`: simulates fleets of replicas from seeds. With `--mutants`, it checks that
//! the simulator finds seeded bugs.

mod mutants;

use std::path::Path;

use crate::process::{self, Failure};

/// Command-line arguments of `cargo xtask simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of seeds, from 0 on; 10000 by default
    #[arg(long, conflicts_with = "seed", allow_negative_numbers = true)]
    seeds: Option<u64>,
    /// Simulate a single seed, and print its trace
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Stop after this number of minutes
    #[arg(long, allow_negative_numbers = true)]
    minutes: Option<u64>,
    /// Seed known bugs, one at a time, and report which ones the simulator finds within 2000 seeds.
    /// With a text, only bugs with it in their description
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "",
        conflicts_with_all = ["seeds", "seed", "minutes"])]
    mutants: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(text) = &args.mutants {
        return mutants::run(text);
    }
    let mut command =
        process::cargo(&["run", "--release", "--package", "tollgate-simulator", "--"]);
    let numbers = [("--seeds", args.seeds), ("--seed", args.seed), ("--minutes", args.minutes)];
    for (flag, number) in numbers {
        if let Some(number) = number {
            command.args([flag, &number.to_string()]);
        }
    }
    process::run(&mut command)
}

/// Writes the files in Git's index to a folder.
fn export(to: &Path) -> Result<(), Failure> {
    let prefix = format!("--prefix={}/", to.display());
    let mut export = std::process::Command::new("git");
    export.current_dir(process::root()).args(["checkout-index", "--all", "--force", &prefix]);
    process::run(&mut export)
}
