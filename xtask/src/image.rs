//! `cargo xtask check image`: the Dockerfile's builds resolve in the context that `.dockerignore`
//! leaves. The check compiles no code and needs no Docker engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{self, Failure};

pub(crate) fn run() -> Result<(), Failure> {
    let root = process::root();
    let read = |name: &str| {
        fs::read_to_string(root.join(name))
            .map_err(|error| Failure::Broken(format!("cannot read {name}: {error}")))
    };
    let (ignored, builds) = (read(".dockerignore")?, read("Dockerfile")?);
    let context = tempfile::tempdir()
        .map_err(|error| Failure::Unready(format!("cannot make a temporary folder: {error}")))?;

    // In a fresh clone, Docker sends the files that Git tracks to the engine.
    let prefix = format!("--prefix={}/", context.path().display());
    let mut export = Command::new("git");
    process::run(export.current_dir(&root).args(["checkout-index", "--all", &prefix]))?;
    for entry in ignored_entries(&ignored)? {
        let path = context.path().join(entry);
        // Git tracks no file of `.git`, so an entry may be missing.
        let _ = if path.is_file() { fs::remove_file(path) } else { fs::remove_dir_all(path) };
    }
    // Cargo's plan reads only manifests, but sources embed data through links to other folders.
    if let Some(link) = dangling_link(&context.path().join("crates"))? {
        let link = link.strip_prefix(context.path()).unwrap_or(&link).display();
        return Err(Failure::Broken(format!(
            "`{link}` is a link to a file that .dockerignore leaves out\n\
             cure: remove the target's folder from .dockerignore",
        )));
    }
    for arguments in cargo_builds(&builds)? {
        // Cargo plans the build and prints the plan instead of running it.
        let mut plan = process::cargo(&["build"]);
        plan.args(arguments).args(["-Z", "unstable-options", "--unit-graph"]);
        plan.current_dir(context.path()).env("RUSTC_BOOTSTRAP", "1").stdout(Stdio::null());
        process::run(&mut plan)?;
    }
    Ok(())
}

/// The folders and files that `.dockerignore` lists.
///
/// # Errors
///
/// If an entry is a pattern, because this check would have to match it exactly as Docker does.
fn ignored_entries(text: &str) -> Result<Vec<&str>, Failure> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let entries = lines.filter(|line| !line.starts_with('#') && *line != "**/target");
    entries
        .map(|entry| match entry.contains(['*', '?', '[', '!', '/']) {
            false => Ok(entry),
            true => Err(Failure::Broken(format!(
                "`{entry}` in .dockerignore is a pattern\n\
                 cure: name a folder or file at the root of the repository",
            ))),
        })
        .collect()
}

/// The first symbolic link below a folder that leads to no file.
fn dangling_link(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    let unreadable = |error| Failure::Broken(format!("cannot read {}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_symlink() {
            if !path.exists() {
                return Ok(Some(path));
            }
        } else if path.is_dir()
            && let Some(link) = dangling_link(&path)?
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// The arguments of each `RUN cargo build` in a Dockerfile.
///
/// # Errors
///
/// If there is no such line, because then this step would check no build.
fn cargo_builds(dockerfile: &str) -> Result<Vec<Vec<&str>>, Failure> {
    let lines = dockerfile.lines().filter_map(|line| line.strip_prefix("RUN cargo build "));
    let builds: Vec<Vec<_>> = lines.map(|line| line.split_whitespace().collect()).collect();
    if builds.is_empty() {
        return Err(Failure::Broken(
            "the Dockerfile has no line that starts with `RUN cargo build`".to_owned(),
        ));
    }
    Ok(builds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_entries_are_read() {
        let text = "# comment\n\n.git\ndocs\n**/target\n";
        assert_eq!(ignored_entries(text).unwrap(), [".git", "docs"]);
    }

    #[test]
    fn patterns_are_refused() {
        for pattern in ["crates/*/examples", "*", "!crates", "tests/tests"] {
            let failure = ignored_entries(pattern).unwrap_err().to_string();
            assert!(failure.contains(pattern), "{failure}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn dangling_links_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let (target, crate_folder) = (folder.path().join("lua"), folder.path().join("crates/a"));
        fs::create_dir_all(&crate_folder).unwrap();
        fs::create_dir(&target).unwrap();
        let link = crate_folder.join("lua");
        std::os::unix::fs::symlink("../../lua", &link).unwrap();
        assert_eq!(dangling_link(folder.path()).unwrap(), None);
        fs::remove_dir(&target).unwrap();
        assert_eq!(dangling_link(folder.path()).unwrap(), Some(link));
    }

    #[test]
    fn builds_are_found_in_a_dockerfile() {
        let text = "FROM rust AS build\nRUN cargo build --release --package demo\nCMD [\"demo\"]\n";
        assert_eq!(cargo_builds(text).unwrap(), [["--release", "--package", "demo"]]);
        assert!(cargo_builds("FROM scratch\n").is_err());
    }
}
