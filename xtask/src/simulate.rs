//! `cargo xtask simulate`: simulates fleets of replicas from seeds. With `--mutants`, it checks that
//! the simulator finds seeded bugs.

use std::path::Path;

use crate::mutants;
use crate::process::{self, Failure};

/// Command-line arguments of `cargo xtask simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed known bugs, one at a time, and report which ones the simulator misses within 2000
    /// seeds. A text selects the bugs that have it in their description
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with = "simulator")]
    mutants: Option<String>,
    /// Arguments for the simulator, for example `--seeds 1000`, `--seed 7` or `--minutes 10`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SIMULATOR ARGS")]
    simulator: Vec<String>,
}

const MUTANTS: &str = include_str!("../../crates/tollgate-simulator/mutants.txt");

/// The number of seeds that may be needed to find a bug.
const SEEDS: &str = "2000";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(text) = &args.mutants {
        return mutants::run("the simulator", MUTANTS, text, is_found);
    }
    let run = ["run", "--release", "--package", "tollgate-simulator", "--"];
    process::run(process::cargo(&run).args(&args.simulator))
}

/// Whether the simulator reports a violation in the tree.
fn is_found(tree: &Path) -> Result<bool, Failure> {
    let cargo = |task: &str, rest: &[&str]| {
        let args = [task, "--quiet", "--package", "tollgate-simulator"];
        let mut command = mutants::cargo(tree, &args);
        command.args(rest);
        command
    };
    process::run(&mut cargo("build", &[]))?;
    Ok(!process::status(&mut cargo("run", &["--", "--seeds", SEEDS]))?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_changes_one_place() {
        assert!(mutants::check(MUTANTS) > 20);
    }
}
