//! The lock files of packages outside the workspace.
//!
//! They must match their manifests, which depend on packages in the workspace and so change with
//! these. They also lock the same versions as the workspace. So tests and fuzzers run the versions
//! that users run, and cargo builds each dependency only once.

use std::collections::{BTreeMap, BTreeSet};

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
                "{folder}/Cargo.lock has other versions than Cargo.lock: {strangers}\n{cure}"
            )));
        }
    }
    Ok(())
}

/// Packages in `lock` that could have the workspace's version but have another version.
fn strangers(lock: &str, workspace: &str) -> Vec<String> {
    let known = versions(workspace);
    let is_strange = |name: &str, version: &str| {
        let known = known.get(name).into_iter().flatten();
        let mut compatible = known.filter(|known| series(known) == series(version)).peekable();
        compatible.peek().is_some() && compatible.all(|known| *known != version)
    };
    let packages = versions(lock);
    let packages = packages.iter().flat_map(|(name, it)| it.iter().map(|it| (*name, *it)));
    let strange = packages.filter(|(name, version)| is_strange(name, version));
    strange.map(|(name, version)| format!("{name} {version}")).collect()
}

/// The part that compatible versions share, such as `1` in 1.3.1 and `0.9` in 0.9.2.
fn series(version: &str) -> &str {
    let dots = if version.starts_with("0.") { 2 } else { 1 };
    version.match_indices('.').nth(dots - 1).map_or(version, |(at, _)| &version[..at])
}

/// The locked versions of each package.
fn versions(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions = BTreeMap::<_, BTreeSet<_>>::new();
    for package in lock.split("[[package]]\nname = \"").skip(1) {
        let mut parts = package.split('"');
        if let (Some(name), Some(version)) = (parts.next(), parts.nth(1)) {
            versions.entry(name).or_default().insert(version);
        }
    }
    versions
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
            let package = |(name, version): &(_, _)| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n")
            };
            packages.iter().map(package).collect()
        };
        let workspace = lock(&[("http", "1.3.1"), ("rand", "0.8.5"), ("rand", "0.9.2")]);
        let outside = lock(&[
            ("http", "1.3.0"),
            ("rand", "0.9.2"),
            ("rand", "0.7.1"),
            ("libfuzzer-sys", "0.4.9"),
        ]);
        assert_eq!(strangers(&outside, &workspace), ["http 1.3.0"]);
        assert!(strangers(&workspace, &workspace).is_empty());
    }
}
