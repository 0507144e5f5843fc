//! `cargo xtask check`: the checks required before a merge, besides the tests.

use std::process::Command;
use std::time::Instant;

use clap::ValueEnum;

use crate::arrows;
use crate::circles;
use crate::documents;
use crate::image;
use crate::locks;
use crate::process::{self, Failure};
use crate::purity;
use crate::tools;
use crate::untested;
use crate::workspace;

/// Command-line arguments of `cargo xtask check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The steps to run; by default all, in this order
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Every file is formatted
    Fmt,
    /// Lock files outside the workspace match their manifests and the workspace's versions
    Locks,
    /// Crates respect their boundaries, the drawing of the crates is true, and every test runs
    Purity,
    /// Files of a crate do not use each other in circles
    Circles,
    /// Documents contain no phrases that are hard to read
    Prose,
    /// Links in documents lead to existing files and headings
    Links,
    /// The Dockerfile's builds find all their files despite `.dockerignore`
    Image,
    /// The Debian package installs into a folder, and its program starts there
    Package,
    /// Clippy passes for every target, with all features
    Clippy,
    /// The documentation builds without broken links
    Doc,
}

impl Step {
    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Fmt => process::run(&mut process::cargo(&["fmt", "--all", "--check"])),
            Self::Locks => locks::run(),
            Self::Purity => {
                [purity::run, arrows::run, untested::run].into_iter().try_for_each(|check| check())
            }
            Self::Circles => circles::run(),
            Self::Prose => documents::prose(),
            Self::Links => documents::links(),
            Self::Image => image::run(),
            Self::Package => package(),
            Self::Clippy => clippy(),
            Self::Doc => doc(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let steps = if args.steps.is_empty() { Step::value_variants() } else { &args.steps };
    for step in steps {
        println!("\n== {step:?}");
        let start = Instant::now();
        step.run()?;
        println!("{step:?}: {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn package() -> Result<(), Failure> {
    let path = tools::with_cargo_deb(&tools::provide(&tools::PACKAGE, false)?)?;
    process::run(&mut process::cargo(&[
        "build",
        "--package",
        "tollgate-cli",
        "--bin",
        "tollgate",
    ]))?;
    let mut test = Command::new(process::root().join("tests/package.sh"));
    process::run(test.arg(workspace::target_folder()?.join("debug/tollgate")).env("PATH", path))
}

fn clippy() -> Result<(), Failure> {
    let targets = ["clippy", "--workspace", "--all-targets", "--all-features"];
    // Deny lints after `--` instead of in RUSTFLAGS, which would rebuild every dependency.
    process::run(process::cargo(&targets).args(["--", "-D", "warnings"]))
}

fn doc() -> Result<(), Failure> {
    let mut command = process::cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
    process::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}
