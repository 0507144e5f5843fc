//! Targets with `test = false` must contain no tests, because no command would run them.

use std::path::Path;
use std::process::Command;

use crate::process::Failure;
use crate::workspace::Metadata;

pub(crate) fn run() -> Result<(), Failure> {
    let packages = Metadata::read()?.packages;
    let targets = packages.iter().flat_map(|package| &package.targets);
    let is_code = |kind: &String| ["lib", "bin", "proc-macro"].contains(&kind.as_str());
    for target in targets.filter(|target| !target.test && target.kind.iter().any(is_code)) {
        if let Some(file) = tests_in(&target.src_path)?.lines().next() {
            return Err(Failure::Broken(format!(
                "the tests in {file} never run, because the manifest sets `test = false` for their \
                 target\ncure: remove that line from the manifest",
            )));
        }
    }
    Ok(())
}

/// The target's files that contain tests, a line each.
fn tests_in(root: &Path) -> Result<String, Failure> {
    let folder = root.parent().unwrap_or(root);
    let has_folder =
        root.ends_with("lib.rs") || root.ends_with("main.rs") && !folder.join("lib.rs").exists();
    let mut grep = Command::new("grep");
    // Each program in `bin` is its own target.
    grep.args(["--recursive", "--files-with-matches", "--include=*.rs", "--exclude-dir=bin", "-E"]);
    grep.arg(r"^\s*(#\[test\]|#\[tokio::test|proptest!)").arg(if has_folder {
        folder
    } else {
        root
    });
    // Without a match, grep ends with an exit code other than 0.
    let output = grep.output();
    let output =
        output.map_err(|error| Failure::Unready(format!("could not run grep: {error}")))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
