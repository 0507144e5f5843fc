//! `cargo xtask check image`: the Dockerfile's builds resolve in the context that `.dockerignore`
//! leaves. The check compiles no code and needs no Docker engine.

use std::fs;
use std::process::{Command, Stdio};

use crate::process::{self, Failure};

pub(crate) fn run() -> Result<(), Failure> {
    let (ignored, builds) =
        (process::read_file(".dockerignore")?, process::read_file("Dockerfile")?);
    let context = tempfile::tempdir()
        .map_err(|error| Failure::Unready(format!("cannot make a temporary folder: {error}")))?;
    // In a fresh clone, Docker sends the files that Git tracks to the engine.
    process::export(context.path())?;
    for entry in ignored_entries(&ignored)? {
        let path = context.path().join(entry);
        // Git tracks no file in `.git`, so an entry may be missing.
        let _ = if path.is_file() { fs::remove_file(path) } else { fs::remove_dir_all(path) };
    }
    // Cargo's plan reads only manifests, but sources embed data through links to other folders.
    // `find -L` follows links, so it reports only dangling links.
    let mut find = Command::new("find");
    find.current_dir(context.path()).args(["-L", "crates", "-type", "l"]);
    if let Some(link) = process::read(&mut find)?.lines().next() {
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

/// The arguments of each `cargo build` in a Dockerfile.
///
/// # Errors
///
/// If there is no such line, because this step would then check no build.
fn cargo_builds(dockerfile: &str) -> Result<Vec<Vec<&str>>, Failure> {
    let runs = dockerfile.lines().filter(|line| line.starts_with("RUN "));
    let builds = runs.filter_map(|line| Some(line.split_once(" cargo build ")?.1));
    let builds: Vec<Vec<_>> = builds.map(|line| line.split_whitespace().collect()).collect();
    if builds.is_empty() {
        return Err(Failure::Broken(
            "the Dockerfile has no line that starts with `RUN` and runs `cargo build`".to_owned(),
        ));
    }
    Ok(builds)
}
