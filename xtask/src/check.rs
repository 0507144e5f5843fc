//! `cargo xtask check`: the checks required before a merge, besides the tests.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;

use crate::circles;
use crate::documents;
use crate::image;
use crate::locks;
use crate::process::{self, Failure};
use crate::purity;
use crate::untested;
use crate::workspace::{self, Metadata, Package};

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
    /// Crates respect their boundaries, files do not import in circles, and every test runs
    Purity,
    /// Documents contain no hard phrases
    Prose,
    /// Links between documents lead to existing files and headings
    Links,
    /// The Dockerfile's builds find all their files despite `.dockerignore`
    Image,
    /// Clippy passes for every target, with all features
    Clippy,
    /// Clippy passes for each published crate with no features, each feature, and all features
    Features,
    /// The feature `jwt` works with each of jsonwebtoken's crypto providers
    Crypto,
    /// The documentation builds without broken links
    Doc,
    /// Every published crate builds from its packaged files
    Package,
}

impl Step {
    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Fmt => process::run(&mut process::cargo(&["fmt", "--all", "--check"])),
            Self::Locks => locks::run(),
            Self::Purity => {
                purity::run().and_then(|()| circles::run()).and_then(|()| untested::run())
            }
            Self::Prose => documents::prose(),
            Self::Links => documents::links(),
            Self::Image => image::run(),
            Self::Clippy => clippy(&["--workspace", "--all-targets", "--all-features"]),
            Self::Features => features(),
            Self::Crypto => crypto(),
            Self::Doc => doc(),
            Self::Package => package(),
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

fn clippy(selection: &[&str]) -> Result<(), Failure> {
    // Deny lints after `--` instead of in RUSTFLAGS, which would rebuild every dependency.
    process::run(process::cargo(&["clippy"]).args(selection).args(["--", "-D", "warnings"]))
}

fn features() -> Result<(), Failure> {
    for package in Metadata::read()?.published().filter(|it| !it.features.is_empty()) {
        // No `--all-targets`, because the tests' dependencies enable features and would hide a
        // missing feature.
        let clippy_with = |features: &[&str]| {
            let selection = ["--package", &package.name, "--no-default-features"];
            clippy(&[&selection, features].concat())
        };
        clippy_with(&[])?;
        for feature in package.features.keys().filter(|feature| *feature != "default") {
            clippy_with(&["--features", feature])?;
        }
        clippy_with(&["--all-features"])?;
    }
    Ok(())
}

fn crypto() -> Result<(), Failure> {
    for features in ["rust-crypto", "aws-lc-rs", "rust-crypto,aws-lc-rs", ""] {
        let mut command = process::cargo(&["test", "--features", features]);
        command.current_dir(process::root().join("tests/crypto"));
        process::run(command.env("CARGO_TARGET_DIR", workspace::target_folder()?))?;
    }
    Ok(())
}

fn doc() -> Result<(), Failure> {
    let mut command = process::cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
    process::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn package() -> Result<(), Failure> {
    let metadata = Metadata::read()?;
    // In a single call, because an unpublished crate only builds against siblings that are packaged
    // together with it.
    let mut command = process::cargo(&["package", "--all-features", "--allow-dirty"]);
    for package in metadata.published() {
        check_files(package)?;
        command.args(["--package", &package.name]);
    }
    // Cargo assumes that a version never changes, so it would reuse what it unpacked and built from
    // the packages of an earlier check.
    let target = metadata.target_directory.join("packages");
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    for folder in home.join("registry/src").read_dir().into_iter().flatten().flatten() {
        // A registry without a host, which only `cargo package` creates.
        if folder.file_name().to_string_lossy().starts_with('-') {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
    let _ = fs::remove_dir_all(&target);
    // Cargo builds packages outside of the workspace. In one folder, they share dependencies.
    process::run(command.env("CARGO_TARGET_DIR", target))
}

/// A package must contain both licenses, which require their text in every copy, and no private key,
/// which scanners of published packages report even if only a test uses it.
fn check_files(package: &Package) -> Result<(), Failure> {
    let (name, folder) = (&package.name, package.folder());
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        // `is_file` follows symlinks, so this also finds a dangling link.
        let link = folder.join(license);
        if !link.is_file() {
            return Err(Failure::Broken(format!(
                "the package {name} lacks {license}\ncure: ln -s ../../{license} {}",
                link.display(),
            )));
        }
    }
    let mut list = process::cargo(&["package", "--list", "--allow-dirty", "--package"]);
    for file in process::read(list.arg(name))?.lines() {
        // Cargo writes some of the listed files only into the package.
        let content = fs::read(folder.join(file)).unwrap_or_default();
        if String::from_utf8_lossy(&content).contains("PRIVATE KEY-----") {
            return Err(Failure::Broken(format!(
                "the package {name} contains the private key {file}\n\
                 cure: add it to `exclude` in the package's Cargo.toml",
            )));
        }
    }
    Ok(())
}
