//! `cargo xtask check`: the checks required before a merge, besides the tests.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::circles;
use crate::documents;
use crate::image;
use crate::locks;
use crate::process::{self, Failure};
use crate::purity;
use crate::untested;
use crate::workspace::{self, Package};

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

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let steps = if args.steps.is_empty() { Step::value_variants() } else { &args.steps };
    let mut times = Vec::new();
    for &step in steps {
        println!("\n== {}", step.name());
        let start = Instant::now();
        let outcome = step.run();
        times.push((step, start.elapsed()));
        if let Err(failure) = outcome {
            print!("\n{}", table(&times, Some(step)));
            return Err(failure);
        }
    }
    print!("\n{}", table(&times, None));
    Ok(())
}

fn clippy(selection: &[&str]) -> Result<(), Failure> {
    // Deny lints after `--` instead of in RUSTFLAGS, which would rebuild every dependency.
    process::run(process::cargo(&["clippy"]).args(selection).args(["--", "-D", "warnings"]))
}

fn features() -> Result<(), Failure> {
    for package in workspace::packages()?.iter().filter(|package| package.is_published) {
        if package.features.is_empty() {
            continue;
        }
        // No `--all-targets`, because the tests' dependencies enable features and would hide a
        // missing feature.
        let clippy_with = |features: &[&str]| {
            let selection = ["--package", &package.name, "--no-default-features"];
            clippy(&[&selection, features].concat())
        };
        clippy_with(&[])?;
        for feature in &package.features {
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
    // In a single call, because an unpublished crate only builds against siblings that are packaged
    // together with it.
    let mut command = process::cargo(&["package", "--all-features", "--allow-dirty"]);
    for package in workspace::packages()?.iter().filter(|package| package.is_published) {
        carries_licenses(package)?;
        carries_no_private_key(package)?;
        command.args(["--package", &package.name]);
    }
    let target = workspace::target_folder()?;
    forget_unpacked()?;
    forget_built(&Path::new(&target).join("debug"));
    // Cargo builds packages outside of the workspace. With the same folder and the same profile, it
    // reuses the dependencies from the other steps.
    command.env("CARGO_TARGET_DIR", target);
    command.args(["--config", "profile.dev.package.\"*\".debug=false"]);
    process::run(command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only"))
}

/// Removes our packages that Cargo unpacked for an earlier check. Otherwise Cargo would reuse them,
/// because it assumes that a version never changes.
fn forget_unpacked() -> Result<(), Failure> {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let Some(registries) = home.and_then(|home| home.join("registry/src").read_dir().ok()) else {
        return Ok(());
    };
    // A registry without a host, which only `cargo package` creates.
    let local = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('-'))
    };
    for registry in registries.flatten().map(|entry| entry.path()).filter(local) {
        for package in registry.read_dir().into_iter().flatten().flatten() {
            if package.file_name().to_string_lossy().starts_with("tollgate") {
                std::fs::remove_dir_all(package.path()).map_err(|error| {
                    Failure::Broken(format!("cannot remove {}: {error}", package.path().display()))
                })?;
            }
        }
    }
    Ok(())
}

/// Makes Cargo rebuild our packages from an earlier check. All files in a package have the same old
/// date, so Cargo would consider them unchanged.
fn forget_built(folder: &Path) {
    for file in folder.join("deps").read_dir().into_iter().flatten().flatten() {
        let (path, name) = (file.path(), file.file_name());
        let Some(crate_and_hash) = name.to_str().and_then(|name| name.strip_suffix(".d")) else {
            continue;
        };
        let is_unpacked = || std::fs::read_to_string(&path).is_ok_and(|it| it.contains("src/-"));
        if crate_and_hash.starts_with("tollgate") && is_unpacked() {
            let state = folder.join(".fingerprint").join(crate_and_hash.replace('_', "-"));
            // The folder may be missing already.
            let _ = std::fs::remove_dir_all(state);
        }
    }
}

/// Both licenses require their text in every copy.
fn carries_licenses(package: &Package) -> Result<(), Failure> {
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        // `is_file` follows symlinks, so this also finds a dangling link.
        if !package.folder.join(license).is_file() {
            return Err(Failure::Broken(format!(
                "the package {} lacks {license}\n\
                 cure: ln -s ../../{license} {}",
                package.name,
                package.folder.join(license).display(),
            )));
        }
    }
    Ok(())
}

/// Scanners of published packages report a private key even if only a test uses it.
fn carries_no_private_key(package: &Package) -> Result<(), Failure> {
    let mut list = process::cargo(&["package", "--list", "--allow-dirty", "--package"]);
    for name in process::read(list.arg(&package.name))?.lines() {
        // Cargo writes some of the listed files only into the package.
        let content = std::fs::read(package.folder.join(name)).unwrap_or_default();
        if String::from_utf8_lossy(&content).contains("PRIVATE KEY-----") {
            return Err(Failure::Broken(format!(
                "the package {} contains the private key {name}\n\
                 cure: add it to `exclude` in the package's Cargo.toml",
                package.name,
            )));
        }
    }
    Ok(())
}

fn table(times: &[(Step, Duration)], failed: Option<Step>) -> String {
    let mut table = format!("{:<10}{:>8}\n", "step", "seconds");
    let mut total = Duration::ZERO;
    for &(step, time) in times {
        let mark = if failed == Some(step) { "  failed" } else { "" };
        let _ = writeln!(table, "{:<10}{:>8.1}{mark}", step.name(), time.as_secs_f64());
        total += time;
    }
    let _ = writeln!(table, "{:<10}{:>8.1}", "total", total.as_secs_f64());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_marks_the_failed_step() {
        let times =
            [(Step::Fmt, Duration::from_millis(420)), (Step::Clippy, Duration::from_secs(61))];
        let expected = "\
step       seconds
fmt            0.4
clippy        61.0  failed
total         61.4
";
        assert_eq!(table(&times, Some(Step::Clippy)), expected);
    }
}
