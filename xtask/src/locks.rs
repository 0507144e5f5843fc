//! The lock files of packages outside the workspace.
//!
//! They must match their manifests, and lock the same versions as the workspace. So tests and
//! fuzzers run the versions that users run, and cargo builds each dependency only once.

use std::collections::BTreeSet;

use crate::process::{self, Failure};

pub(crate) fn run() -> Result<(), Failure> {
    let workspace = process::read_file("Cargo.lock")?;
    for folder in OUTSIDE {
        let manifest = format!("{folder}/Cargo.toml");
        let cure = format!(
            "cure: cp Cargo.lock {folder}/ && cargo update --workspace --manifest-path {manifest}"
        );
        let mut command = process::cargo(&["update", "--workspace", "--locked", "--quiet"]);
        process::run(command.args(["--manifest-path", &manifest]))
            .map_err(|failure| Failure::Broken(format!("{failure}\n{cure}")))?;
        let strangers =
            strangers(&process::read_file(format!("{folder}/Cargo.lock"))?, &workspace).join(", ");
        if !strangers.is_empty() {
            return Err(Failure::Broken(format!(
                "{folder}/Cargo.lock and Cargo.lock have different versions of {strangers}\n{cure}"
            )));
        }
    }
    Ok(())
}

/// Packages in `lock` that could have the workspace's version but have a different one.
fn strangers(lock: &str, workspace: &str) -> Vec<String> {
    let (locked, ours) = (packages(lock), packages(workspace));
    let fits = |(name, version): &&(&str, &str)| {
        ours.iter().any(|our| our.0 == *name && series(our.1) == series(version))
    };
    let strange = locked.difference(&ours).filter(fits);
    strange.map(|(name, version)| format!("{name} {version}")).collect()
}

/// The part that compatible versions share, such as `1` in 1.3.1 and `0.9` in 0.9.2.
fn series(version: &str) -> &str {
    let dots = if version.starts_with("0.") { 2 } else { 1 };
    version.match_indices('.').nth(dots - 1).map_or(version, |(at, _)| &version[..at])
}

/// The names and versions in a lock file.
fn packages(lock: &str) -> BTreeSet<(&str, &str)> {
    let packages = lock.split("[[package]]\nname = \"").skip(1).map(|it| it.split('"'));
    packages.filter_map(|mut parts| Some((parts.next()?, parts.nth(1)?))).collect()
}

/// Folders with their own lock file, except the benchmarks' peers, which depend on sources that
/// `peers/install` downloads.
const OUTSIDE: [&str; 2] = ["fuzz", "tests/crypto"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_named() {
        let lock = |packages: &[(&str, &str)]| -> String {
            let text = |(name, version)| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n")
            };
            packages.iter().copied().map(text).collect()
        };
        let workspace = lock(&[("http", "1.3.1"), ("rand", "0.8.5"), ("rand", "0.9.2")]);
        let outside =
            [("http", "1.3.0"), ("rand", "0.9.2"), ("rand", "0.7.1"), ("fuzzer", "0.4.9")];
        assert_eq!(strangers(&lock(&outside), &workspace), ["http 1.3.0"]);
        assert!(strangers(&workspace, &workspace).is_empty());
    }
}
