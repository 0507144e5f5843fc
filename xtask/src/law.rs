//! `cargo xtask law`: the laws of combinations with a million steps each. With `--mutants`, it
//! checks that the laws and the engine's tables find seeded bugs.

use std::path::Path;

use crate::mutants;
use crate::process::{self, Failure};
use crate::tools;

/// Command-line arguments of `cargo xtask law`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed known bugs, one at a time, and report which ones the laws miss. A text selects the bugs
    /// that have it in their description
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    mutants: Option<String>,
    /// Install missing programs with sudo; not needed if you are root
    #[arg(long)]
    install: bool,
    /// The seed that a failed run printed, to repeat it; by default each run has different seeds
    #[arg(long)]
    seed: Option<u64>,
}

const OF_STORES: &str = include_str!("../../crates/tollgate-store-tests/mutants.txt");
const OF_ENGINE: &str = include_str!("../../crates/tollgate-engine/mutants.txt");

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(text) = &args.mutants {
        let laws = |tree: &Path| is_found(tree, "tollgate-memory", "suite", "laws::");
        let tables = |tree: &Path| is_found(tree, "tollgate-engine", "tables", "");
        let of_stores = mutants::run("the laws", OF_STORES, text, laws);
        let of_engine = mutants::run("the engine's tables", OF_ENGINE, text, tables);
        return of_stores.and(of_engine);
    }
    let path = tools::provide(&tools::TESTS, args.install)?;
    for package in ["tollgate-memory", "tollgate-redis"] {
        let mut command = process::cargo(&["test", "--release", "--package", package]);
        command.args(["--all-features", "--test", "suite", "--", "laws::"]);
        command.env("PATH", &path).env("TOLLGATE_LONG", "1");
        if let Some(seed) = args.seed {
            command.env("TOLLGATE_SEED", seed.to_string());
        }
        process::run(&mut command)?;
    }
    Ok(())
}

/// Whether a test with this text in its name fails in the tree.
fn is_found(tree: &Path, package: &str, suite: &str, name: &str) -> Result<bool, Failure> {
    let test = |rest: &[&str]| {
        let mut command = mutants::cargo(tree, &["test", "--package", package]);
        command.args(["--quiet", "--all-features", "--test", suite]).args(rest);
        command
    };
    process::run(&mut test(&["--no-run"]))?;
    Ok(!process::status(&mut test(&["--", name]))?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_changes_one_place() {
        assert!([OF_STORES, OF_ENGINE].map(mutants::check).iter().all(|bugs| *bugs >= 10));
    }
}
